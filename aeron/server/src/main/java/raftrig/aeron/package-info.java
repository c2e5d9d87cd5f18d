/**
 * A node of a three-node Aeron Cluster that echoes requests, and the media driver that runs beside the client.
 *
 * <p>{@link raftrig.aeron.Main} starts either. A node is {@link raftrig.aeron.Node}, with what its flags say
 * ({@link raftrig.aeron.NodeSettings}), a directory that it holds ({@link raftrig.aeron.Home}), the replicated service
 * ({@link raftrig.aeron.EchoService}) and what it says of itself ({@link raftrig.aeron.StatusServer}). The client's
 * driver is {@link raftrig.aeron.Driver}.
 */
package raftrig.aeron;
