// Package kv is the replicated state machine behind the gateway: a map from
// 64-bit keys to values, with enough bookkeeping to catch a node that went its
// own way.
//
// A command is an 8-byte little-endian key and a value. Applying it sets the
// key. Beside the map the machine keeps the index of the last command it
// applied, a count of commands since the cluster began, and two 64-bit hashes:
//
//   - sum adds up a hash of every (key, value) pair that the map holds. It does
//     not depend on an order, so it is kept up to date with one subtraction and
//     one addition a command. The hash of the value that leaves is taken from
//     the bytes as they are then: a value that was written to in memory shows.
//   - chain folds the hash and the index of every command into that of all
//     before it. A command that was lost, doubled, reordered or altered shows,
//     also when a later one has overwritten its key.
//
// The digest is both. Two nodes at the same index with the same digest applied
// the same commands in the same order; the hashes (xxHash64) guard against
// faults, not against an adversary.
//
// The map keeps the bytes of a command, it does not copy them: nobody may
// write to a command once it was applied.
package kv
