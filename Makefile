# raftrig: load tests for Raft implementations. make help lists the verbs.

# Those behind the gateway have their servers in Go, the others in the product's
# own language.
GATEWAY := hashiraft etcdraft dragonboat
NATIVE := braft openraft aeron
PRODUCTS := $(GATEWAY) $(NATIVE)
-include .env
COMMIT := $(shell git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
GO_BUILD := go build -trimpath -ldflags "-X raftrig/record.Commit=$(COMMIT)"
# Tools of the checks, by exact version; go fetches and keeps them.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
BENCHSTAT := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da

.DEFAULT_GOAL := help
.PHONY: help build demo test lint bench table report proto clean plan deploy env destroy node-rtt partition heal FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile deploy/deploy.mk
	@echo "  <product>.<verb>  a verb of a product, as in make hashiraft.start; the products: $(PRODUCTS)"
	@echo "  make -C <product> help lists the verbs and the knobs"

build: bin/fleet bin/record bin/sweep bin/deploy $(foreach p,$(PRODUCTS),$(p).buildable) ## build everything that this host can build into bin/

bin/fleet: FORCE | go
	@$(GO_BUILD) -o $@ ./fleet/cmd/fleet
bin/record: FORCE | go
	@$(GO_BUILD) -o $@ ./loadgen/cmd/record
bin/sweep: FORCE | go
	@$(GO_BUILD) -o $@ ./sweep/cmd/sweep
bin/deploy: FORCE | go
	@$(GO_BUILD) -o $@ ./deploy/cmd/deploy
bin/aeron-model: FORCE | go
	@$(GO_BUILD) -o $@ ./aeron/cmd/aeron-model
$(GATEWAY:%=bin/%-server): bin/%-server: FORCE | go
	@$(GO_BUILD) -o $@ ./$*/server
bin/%-client: FORCE | go
	@$(GO_BUILD) -o $@ ./$*/client

.PHONY: go
go:
	@command -v go >/dev/null || { echo "make: go is not on the PATH: install Go 1.26 or newer" >&2; exit 1; }

# make hashiraft.start and the like. Variables of the command line go along. A
# rule for each product: one with several patterns would count all of them as
# made when one is.
define product-verbs
$(1).%: FORCE
	@$$(MAKE) --no-print-directory -C $(1) $$*
endef
$(foreach p,$(PRODUCTS),$(eval $(call product-verbs,$(p))))

# Where it runs: namespaces of this host, or EC2.
ifeq ($(TOPOLOGY),netns)
env: bin/fleet ## TOPOLOGY=netns RTT=390us: namespaces on this host, and .env for them; destroy removes them
	@bin/fleet netns up $(if $(RTT),-rtt '$(RTT)')
destroy: bin/fleet
	@bin/fleet netns down
plan deploy:
	@echo "make: TOPOLOGY=netns needs no $@: make env, or TOPOLOGY=multi_az for EC2" >&2; exit 2
else
include deploy/deploy.mk
endif
node-rtt: bin/fleet ## round trips between the nodes, into .env
	@bin/fleet rtt -save
partition: bin/fleet ## TOPOLOGY=netns: cut NODE=2 off
	@bin/fleet partition -nodes '$(NODE)'
heal: bin/fleet ## join NODE=2 again; all when not given
	@bin/fleet heal $(if $(NODE),-nodes '$(NODE)')

demo: bin/fleet hashiraft.build ## a real cluster on this host: closed loop, open loop, verify, stop
	@./demo.sh

test: build lint ## every check: build, lint, tests with -race, real clusters
	@./test.sh $(GOTESTSUM) $(NATIVE)

lint: | go ## gofmt, vet, staticcheck
	@unformatted=$$(gofmt -l .); \
	  if [ -n "$$unformatted" ]; then echo "lint: run gofmt -w on: $$unformatted" >&2; exit 1; fi
	@go vet ./...
	@if go install -n $(STATICCHECK) >/dev/null 2>&1; then go run $(STATICCHECK) ./...; \
	  else echo "SKIP staticcheck: its module cannot be fetched"; fi
	@deploy/lint.sh

bench: build ## what the rig and its parts cost, beside what they are compared to
	@./bench.sh $(BENCHSTAT)

table: build ## all products side by side on this host, into README.md; RATE=1000
	@./table.sh $(PRODUCTS)

report: bin/sweep ## the page of all ladders, results/report.html, and its charts beside it
	@bin/sweep report -o results/report.html -charts results/charts $(wildcard results/*/*.csv) $(wildcard sweep/published/*.csv)

proto: ## generate gateway/gatewaypb again (needs protoc: Debian's protobuf-compiler)
	@command -v protoc >/dev/null || { echo "make: protoc is not on the PATH: install protobuf-compiler" >&2; exit 1; }
	@mkdir -p bin/protoc
	@GOBIN=$(CURDIR)/bin/protoc go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
	@GOBIN=$(CURDIR)/bin/protoc go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
	@cd gateway/gatewaypb && PATH=$(CURDIR)/bin/protoc:$$PATH protoc --go_out=. --go_opt=paths=source_relative \
	  --go-grpc_out=. --go-grpc_opt=paths=source_relative gateway.proto

clean: ## stop every cluster and remove what was built and run; results stay
	@for p in $(PRODUCTS); do $(MAKE) --no-print-directory -C $$p clean || exit 1; done
	@rm -rf bin run

FORCE:
