data "aws_availability_zones" "available" {
  state = "available"
}

resource "aws_vpc" "fleet" {
  cidr_block           = "10.77.0.0/16"
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = { Name = var.name }
}

resource "aws_internet_gateway" "fleet" {
  vpc_id = aws_vpc.fleet.id
  tags   = { Name = var.name }
}

resource "aws_route_table" "fleet" {
  vpc_id = aws_vpc.fleet.id
  tags   = { Name = var.name }

  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.fleet.id
  }
}

# A subnet a zone, whatever the topology: a switch moves hosts and nothing else.
resource "aws_subnet" "zone" {
  for_each = { for i, zone in var.node_azs : zone => i }

  vpc_id            = aws_vpc.fleet.id
  availability_zone = each.key
  cidr_block        = cidrsubnet(aws_vpc.fleet.cidr_block, 8, each.value + 1)
  tags              = { Name = "${var.name}-${each.key}" }

  lifecycle {
    precondition {
      condition     = contains(data.aws_availability_zones.available.names, each.key)
      error_message = "${each.key} is no zone of ${var.region} that this account can use now: choose others in node_azs (${join(", ", data.aws_availability_zones.available.names)})."
    }
  }
}

resource "aws_route_table_association" "zone" {
  for_each = aws_subnet.zone

  subnet_id      = each.value.id
  route_table_id = aws_route_table.fleet.id
}

resource "aws_security_group" "fleet" {
  name        = var.name
  description = "raftrig fleet"
  vpc_id      = aws_vpc.fleet.id
  tags        = { Name = var.name }
}

resource "aws_vpc_security_group_ingress_rule" "inside" {
  security_group_id            = aws_security_group.fleet.id
  description                  = "all traffic inside the fleet"
  referenced_security_group_id = aws_security_group.fleet.id
  ip_protocol                  = "-1"
}

# A product with a port of its own needs a variable and a line here.
resource "aws_vpc_security_group_ingress_rule" "outside" {
  for_each = {
    ssh       = 22
    braft     = var.raft_port
    openraft  = var.openraft_api_port
    hashiraft = var.hashiraft_port
  }

  security_group_id = aws_security_group.fleet.id
  description       = each.key
  cidr_ipv4         = var.ssh_ingress_cidr
  ip_protocol       = "tcp"
  from_port         = each.value
  to_port           = each.value
}

resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.fleet.id
  description       = "all"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}
