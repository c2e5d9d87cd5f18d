# All hosts in one placement group: the floor of latency, and nothing that
# outlives its zone.
topology = "single_az"
