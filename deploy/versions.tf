terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "5.100.0"
    }
  }
}

provider "aws" {
  region = var.region
  # InsufficientInstanceCapacity is retried like a throttled call, for minutes
  # with the default of 25.
  max_retries = var.max_retries

  # The topology is no tag: a switch would then touch every resource.
  default_tags {
    tags = {
      Project = var.name
    }
  }
}
