locals {
  first_zone = var.node_azs[0]

  # The zone of each host, the only thing that the topology decides. Node 1 and
  # the client never move.
  zone = {
    client = local.first_zone
    node1  = local.first_zone
    node2  = var.topology == "multi_az" ? var.node_azs[1] : local.first_zone
    node3  = var.topology == "multi_az" ? var.node_azs[2] : local.first_zone
  }
}

data "aws_ami" "ubuntu" {
  most_recent = true
  owners      = ["099720109477"] # Canonical

  filter {
    name   = "name"
    values = ["ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-*"]
  }

  filter {
    name   = "virtualization-type"
    values = ["hvm"]
  }
}

data "aws_ec2_instance_type_offerings" "zones" {
  location_type = "availability-zone"

  filter {
    name   = "instance-type"
    values = [var.node_instance_type]
  }
}

locals {
  # Without the comment, which says nothing to a host.
  public_key = join(" ", slice(split(" ", trimspace(var.ssh_public_key)), 0, 2))
}

# Hosts take their key at their first boot: another key is another name, and
# replaces them.
resource "aws_key_pair" "fleet" {
  key_name   = "${var.name}-${substr(sha256(local.public_key), 0, 8)}"
  public_key = local.public_key
}

# A cluster placement group lies in one zone: it holds the hosts of the first,
# client and node 1, and all four in single_az.
resource "aws_placement_group" "first_zone" {
  name     = var.name
  strategy = "cluster"
}

resource "aws_instance" "host" {
  for_each = local.zone

  ami                         = var.ami_id != "" ? var.ami_id : data.aws_ami.ubuntu.id
  instance_type               = each.key == "client" ? var.client_instance_type : var.node_instance_type
  availability_zone           = each.value
  subnet_id                   = aws_subnet.zone[each.value].id
  placement_group             = each.value == local.first_zone ? aws_placement_group.first_zone.name : null
  key_name                    = aws_key_pair.fleet.key_name
  vpc_security_group_ids      = [aws_security_group.fleet.id]
  associate_public_ip_address = true
  tags                        = { Name = "${var.name}-${each.key}" }

  # The same on all hosts. A change replaces them: one in place would stop them
  # and wipe their local disks all the same.
  user_data                   = replace(file("${path.module}/user_data.sh"), "@boot.sh@", trimspace(file("${path.module}/boot.sh")))
  user_data_replace_on_change = true

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = 20
  }

  lifecycle {
    # A newer image is no reason to replace a host; ami_id pins one.
    ignore_changes = [ami]

    precondition {
      condition     = each.key == "client" || contains(data.aws_ec2_instance_type_offerings.zones.locations, each.value)
      error_message = "${var.node_instance_type} is not offered in ${each.value}: choose another node_instance_type, or other zones in node_azs (it is offered in ${join(", ", data.aws_ec2_instance_type_offerings.zones.locations)})."
    }
  }
}
