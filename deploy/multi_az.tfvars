# A node a zone: what a group that outlives the loss of a zone has to pay.
topology = "multi_az"
