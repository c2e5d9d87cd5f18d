variable "topology" {
  description = "Where the hosts are: multi_az (a node a zone) or single_az (all in the first). The .tfvars files set it."
  type        = string

  validation {
    condition     = contains(["multi_az", "single_az"], var.topology)
    error_message = "TOPOLOGY is multi_az or single_az."
  }
}

variable "node_azs" {
  description = "Zones of nodes 1, 2 and 3. The client is in the first."
  type        = list(string)
  default     = ["us-east-1a", "us-east-1b", "us-east-1c"]

  validation {
    condition     = length(var.node_azs) == 3 && length(distinct(var.node_azs)) == 3
    error_message = "node_azs wants three different zones, as in [\"us-east-1a\", \"us-east-1b\", \"us-east-1d\"]."
  }
}

variable "region" {
  description = "Region of every zone in node_azs."
  type        = string
  default     = "us-east-1"
}

variable "name" {
  description = "Name of the fleet: a prefix and a tag of what is made."
  type        = string
  default     = "raftrig"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}$", var.name))
    error_message = "name is up to 31 small letters, digits and hyphens, and begins with a letter."
  }
}

# No local disk and no enhanced network: without fsync and with small messages
# neither is what binds. For synchronous writes take c6id.2xlarge, whose local
# NVMe is mounted at /data.
variable "node_instance_type" {
  description = "Type of the three nodes."
  type        = string
  default     = "c6i.2xlarge"
}

variable "client_instance_type" {
  description = "Type of the client's host."
  type        = string
  default     = "c6i.2xlarge"
}

variable "ami_id" {
  description = "Image of all hosts; by default the newest Ubuntu 22.04 of Canonical at the first apply."
  type        = string
  default     = ""
}

variable "ssh_public_key" {
  description = "Public half of the ssh key, as text."
  type        = string

  validation {
    condition     = can(regex("^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/=]+( .*)?$", trimspace(var.ssh_public_key)))
    error_message = "ssh_public_key is the text of an OpenSSH public key (ed25519, RSA or ECDSA), the .pub file of SSH_KEY."
  }
}

variable "ssh_ingress_cidr" {
  description = "From where ssh and the products' ports can be reached: your own address, as 203.0.113.7/32."
  type        = string

  validation {
    condition     = can(cidrnetmask(var.ssh_ingress_cidr))
    error_message = "ssh_ingress_cidr is an IPv4 range, as 203.0.113.7/32."
  }

  validation {
    # Invalid ranges are the other block's.
    condition     = try(tonumber(split("/", var.ssh_ingress_cidr)[1]) >= 16, true)
    error_message = "ssh_ingress_cidr is wider than /16: give your own address, as 203.0.113.7/32."
  }
}

# Ports that a product serves HTTP or gRPC on, reachable from ssh_ingress_cidr.
# Inside the fleet every port is open.
variable "raft_port" {
  description = "braft: RPC and the built-in pages."
  type        = number
  default     = 8300

  validation {
    condition     = var.raft_port >= 1024 && var.raft_port <= 65535
    error_message = "raft_port is 1024 to 65535."
  }
}

variable "openraft_api_port" {
  description = "openraft: the HTTP API."
  type        = number
  default     = 21001

  validation {
    condition     = var.openraft_api_port >= 1024 && var.openraft_api_port <= 65535
    error_message = "openraft_api_port is 1024 to 65535."
  }
}

variable "hashiraft_port" {
  description = "hashiraft: the gateway."
  type        = number
  default     = 8400

  validation {
    condition     = var.hashiraft_port >= 1024 && var.hashiraft_port <= 65535
    error_message = "hashiraft_port is 1024 to 65535."
  }
}

variable "max_retries" {
  description = "How often a call to AWS is tried again."
  type        = number
  default     = 5
}
