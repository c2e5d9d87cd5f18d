# The nouns that the products behind the gateway share. A product sets PRODUCT,
# PORT (clients, gRPC) and RAFT_PORT (nodes among themselves), and what is its
# own in SERVER_FLAGS_OWN, before it includes this.

CLIENT_FLAGS = -port $(PORT) $(call flag,keys,KEYS)
# DATA=1: a durable log, synced to disk, in run/PRODUCT/nodeN/data, or below the
# folder that DATA names.
DATA_FLAGS = $(if $(DATA),-data $(call quote,$(if $(filter 1,$(DATA)),{dir}/data,$(DATA)/node{id})))
SERVER_CMD = $(SERVER_BIN) -id {id} -addr {addr} -port $(PORT) -raft-port $(RAFT_PORT) \
	-peers {peers:$(RAFT_PORT)} -shared={shared} $(DATA_FLAGS) $(SERVER_FLAGS_OWN) $(SERVER_FLAGS)

include $(dir $(lastword $(MAKEFILE_LIST)))../common.mk

server:
	@$(MAKE) --no-print-directory -s -C $(ROOT) bin/$(PRODUCT)-server
