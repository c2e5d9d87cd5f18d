# The verbs that the products share. A product's Makefile sets its nouns and
# then includes this file:
#
#   PRODUCT      its name: the folder, run/PRODUCT, results/PRODUCT
#   SERVER_CMD   what bin/fleet starts on each node, with its placeholders
#   CLIENT_FLAGS flags of the product's own, when it has some
#   server       a rule that builds the server alone
#   MISSING      what this host lacks to build the server, in a line; empty when nothing
#   PROGRAMS     Go programs of the product beside bin/PRODUCT-client
#   check        a rule that runs the server's own tests, when it has some
#   SERVER_FILES what a node needs of the root's files; bin/PRODUCT-server when not set
#   CLIENT_FILES the same for the client's host; bin/PRODUCT-client when not set
#   FORM         a verb that makes one cluster of nodes that have been started, when it takes one
#
# The fleet is what ../.env says; without it, three nodes on this host.

ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST))))
-include $(ROOT)/.env

ifndef PRODUCT
$(error PRODUCT is not set: run make in a product's folder, or make <product>.<verb> in the root)
endif

BIN := $(ROOT)/bin
FLEET := $(BIN)/fleet
FLEET_FLAGS = -product $(PRODUCT) $(if $(NODES),-nodes $(call quote,$(NODES)))
CLIENT_BIN := $(BIN)/$(PRODUCT)-client
SERVER_BIN := $(BIN)/$(PRODUCT)-server
SERVER_FILES ?= $(SERVER_BIN)
CLIENT_FILES ?= $(CLIENT_BIN)
OUT ?= results/$(PRODUCT)

# Paths in OUT, HDR_OUT and RECORD count from the root.
#
# quote makes one word of a value for the shell, whatever it holds.
quote = '$(subst ','\'',$(1))'
# flag,NAME,VARIABLE is -NAME and the variable's value, when it has one.
flag = $(if $($(2)),-$(1) $(call quote,$($(2))))

# What runs on the client's host, wherever that is; fleet fills in the braces.
CLUSTER_FLAGS = -hosts {peers} -topology {topology} -zones {zones} -rtt {rtt} $(CLIENT_FLAGS)
CLIENT = $(FLEET) client $(1) -- $(CLIENT_BIN)
RUN_FLAGS = -out $(call quote,$(OUT)) \
	$(call flag,mode,MODE) $(call flag,threads,THREADS) $(call flag,rate,RATE) \
	$(call flag,burst,BURST) $(call flag,arrival,ARRIVAL) $(call flag,max-inflight,MAX_INFLIGHT) \
	$(call flag,warmup,WARMUP) $(call flag,measure,MEASURE) $(call flag,drain-timeout,DRAIN_TIMEOUT) \
	$(call flag,pace,PACE) $(call flag,idle,IDLE) $(call flag,size,SIZE) $(call flag,lanes,LANES) $(call flag,seed,SEED) \
	$(call flag,hdr-out,HDR_OUT) $(call flag,leader,LEADER) $(if $(DEGRADED),-degraded) $(FLAGS)

# Sweeps run the verbs below; the knobs go on to each of their runs. A product
# adds its own in KNOBS.
SWEEP := $(BIN)/sweep
RUN_SWEEP = cd $(ROOT) && $(SWEEP)
SWEEP_FLAGS = -product $(PRODUCT) -out $(call quote,$(OUT)) $(call flag,pause,PAUSE) $(call flag,settle,SETTLE)
SWEEP_KNOBS = $(foreach v,BURST ARRIVAL MAX_INFLIGHT WARMUP MEASURE DRAIN_TIMEOUT PACE IDLE SIZE LANES LEADER DEGRADED KEYS FLAGS $(KNOBS),$(if $($(v)),$(call quote,$(v)=$($(v)))))

.DEFAULT_GOAL := help
.PHONY: help build buildable programs server missing lacking check start up stop restart \
	push pull status leader client verify sweep edge agree stall transfer-leader signal logs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  knobs of client: MODE=closed|open THREADS=100 RATE BURST=1 ARRIVAL=uniform|poisson MAX_INFLIGHT"
	@echo "    WARMUP=10s MEASURE=30s DRAIN_TIMEOUT=5s PACE=spin|park IDLE=kernel|poll SIZE=64 LANES=1 SEED"
	@echo "    LEADER=1 DEGRADED=1 HDR_OUT=PREFIX OUT=FOLDER FLAGS='-max-lag-p99 0.3 ...'"

build: programs server ## build server and client

programs:
	@$(MAKE) --no-print-directory -s -C $(ROOT) bin/fleet bin/$(PRODUCT)-client $(PROGRAMS)

# What the host lacks stops a build here, and is a line in the root's.
server: | lacking
lacking:
	@$(if $(MISSING),echo "make: no $(PRODUCT) server: $(MISSING)" >&2; exit 1)
buildable: programs $(if $(MISSING),,server)
	@$(if $(MISSING),echo "SKIP the $(PRODUCT) server: $(MISSING)")
missing:
	@$(if $(MISSING),echo "no $(PRODUCT) server: $(MISSING)")
check:

up: ## start, and what else a cluster needs before its first client
	@$(MAKE) --no-print-directory start
	@$(if $(FORM),$(MAKE) --no-print-directory $(FORM))

push: build ## bring the programs to the hosts, as far as they have others
	@$(FLEET) push -nodes $(call quote,$(or $(NODES),1,2,3)) $(SERVER_FILES)
	@$(FLEET) push -nodes client $(CLIENT_FILES)

start: push ## start the nodes, and return when one leads
	@$(FLEET) start $(FLEET_FLAGS) -- $(SERVER_CMD)
	@$(if $(FORM),echo "the nodes are not a cluster yet: make -C $(PRODUCT) $(FORM)",\
	  $(FLEET) wait $(FLEET_FLAGS) -timeout 60s -- $(CLIENT_BIN) leader $(CLUSTER_FLAGS) -wait 10s)

stop: $(FLEET) ## stop the nodes; nothing stays
	@$(FLEET) stop $(FLEET_FLAGS)

restart: stop start ## stop and start

status: build ## processes, and what each node says of itself; JSON=1 only the latter
	@$(if $(JSON),,$(FLEET) status $(FLEET_FLAGS))
	@$(CLIENT) status $(CLUSTER_FLAGS) $(if $(JSON),-json)

leader: build ## who leads
	@$(CLIENT) leader $(CLUSTER_FLAGS)

client: build ## run the load; the knobs are below
	@$(FLEET) push -nodes client $(CLIENT_FILES)
	@$(call CLIENT,-pull $(call quote,$(OUT)) $(call flag,pull,HDR_OUT)) $(CLUSTER_FLAGS) $(RUN_FLAGS)

pull: $(FLEET) ## bring the records here that stayed on the client's host
	@$(FLEET) pull $(call quote,$(OUT))

verify: build ## hold the newest run (or RECORD=FILE) against what the nodes applied
	@$(CLIENT) verify $(CLUSTER_FLAGS) -out $(call quote,$(OUT)) $(call flag,record,RECORD)

sweep: build $(SWEEP) ## a ladder: RATES=10k,25k REPEATS=3 NAME=sweep, and knobs of client; goes on where it was left
	@$(RUN_SWEEP) run $(SWEEP_FLAGS) $(call flag,name,NAME) $(call flag,rates,RATES) \
	  $(call flag,repeats,REPEATS) $(call flag,seed,SEED) -- $(SWEEP_KNOBS)

edge: build $(SWEEP) ## find the edge of the comfort zone in few runs: START=10k MAX_RATE=1M RESOLUTION=0.05 REPEATS=2 RUNS=10
	@$(RUN_SWEEP) edge $(SWEEP_FLAGS) $(call flag,start,START) $(call flag,max,MAX_RATE) \
	  $(call flag,resolution,RESOLUTION) $(call flag,repeats,REPEATS) $(call flag,runs,RUNS) -- $(SWEEP_KNOBS)

agree: build $(SWEEP) ## closed at THREADS=28, then open at the rate it reached: the same median?
	@$(RUN_SWEEP) agree $(SWEEP_FLAGS) $(call flag,threads,THREADS) -- $(SWEEP_KNOBS)

stall: build $(SWEEP) ## stop the leader for MS=500 in mid-run, open at RATE=1000, then closed
	@$(RUN_SWEEP) stall $(SWEEP_FLAGS) $(call flag,ms,MS) $(call flag,rate,RATE) $(call flag,threads,THREADS) -- $(SWEEP_KNOBS)

transfer-leader: build ## make node TO lead
	@$(CLIENT) transfer $(CLUSTER_FLAGS) -to $(call quote,$(TO))

signal: $(FLEET) ## send SIG (STOP, CONT, TERM, KILL) to NODES=1,3; all when not given
	@$(FLEET) signal $(FLEET_FLAGS) $(call quote,$(SIG))

logs: $(FLEET) ## the end of each node's log; N=20 lines
	@$(FLEET) logs $(FLEET_FLAGS) $(call flag,n,N)

clean: $(FLEET) ## stop the nodes and remove their run directory; results stay
	@$(FLEET) stop -product $(PRODUCT)
	@rm -rf $(ROOT)/run/$(PRODUCT)

# go says itself what is up to date.
.PHONY: go-fleet
go-fleet $(FLEET):
	@$(MAKE) --no-print-directory -s -C $(ROOT) bin/fleet
.PHONY: $(SWEEP)
$(SWEEP):
	@$(MAKE) --no-print-directory -s -C $(ROOT) bin/sweep
