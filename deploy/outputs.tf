# For people; `make env` reads the state itself, where a host that failed is
# missing and not remembered.
output "topology" {
  value = var.topology
}

output "hosts" {
  value = {
    for name, host in aws_instance.host : name => {
      public_ip         = host.public_ip
      private_ip        = host.private_ip
      availability_zone = host.availability_zone
      zone_id           = aws_subnet.zone[local.zone[name]].availability_zone_id
      instance_type     = host.instance_type
      placement_group   = host.placement_group
    }
  }
}
