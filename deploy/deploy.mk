# The verbs of the fleet on EC2; the root's Makefile includes this file.

# word makes one word of a value for the shell, whatever it holds.
deploy-word = '$(subst ','\'',$(1))'
deploy-flag = $(if $($(2)),-$(1) $(call deploy-word,$($(2))))
# An .env of this host says TOPOLOGY=local, which is not meant for EC2.
EC2_TOPOLOGY = $(if $(filter file,$(origin TOPOLOGY)),$(filter-out local,$(TOPOLOGY)),$(TOPOLOGY))
DEPLOY_FLAGS = $(call deploy-flag,topology,EC2_TOPOLOGY) $(if $(SWITCH),-switch) $(call deploy-flag,replace,REPLACE) \
	$(call deploy-flag,key,SSH_KEY) $(call deploy-flag,cidr,SSH_CIDR) \
	$(call deploy-flag,node-type,NODE_TYPE) $(call deploy-flag,client-type,CLIENT_TYPE) \
	$(call deploy-flag,wait,WAIT) $(if $(YES),-yes) $(if $(JSON),-json) \
	$(call deploy-flag,user,SSH_USER) $(call deploy-flag,ssh-opts,SSH_OPTS) \
	$(call deploy-flag,remote-dir,REMOTE_DIR) $(call deploy-flag,dir,DEPLOY_DIR)

plan: bin/deploy ## EC2: what deploy would do and cost; TOPOLOGY=multi_az|single_az
	@bin/deploy plan $(DEPLOY_FLAGS)
deploy: bin/deploy bin/fleet ## EC2: make the fleet and .env; TOPOLOGY SWITCH=1 SSH_KEY SSH_CIDR NODE_TYPE
	@bin/deploy deploy $(DEPLOY_FLAGS)
env: bin/deploy ## EC2: write .env again, from terraform's state
	@bin/deploy env $(DEPLOY_FLAGS)
destroy: bin/deploy ## EC2: remove the fleet and .env; YES=1 does not ask
	@bin/deploy destroy $(DEPLOY_FLAGS)
