// Package serve is the server program that the products behind the gateway
// share. A product is an adapter, a gateway.Node for its Raft library, and the
// flags that are its own; serve adds the flags that every node has, the
// listeners, the gateway, the data directory's lock and identity, signals and
// exit statuses.
//
// The rules are the same for all products. A node listens on its own address
// and on no other. It says "ready on" in its first line on stdout once it takes
// clients. SIGTERM and SIGINT end it in good order. An error is one line on
// stderr, with exit status 2 when the command line was wrong and 1 otherwise.
package serve
