#!/usr/bin/env bash
# lint.sh: the form of the terraform files and of the shell scripts in deploy/.
# terraform validate wants the provider: TF_MIRROR=DIR takes it from a folder.
set -uo pipefail
cd "$(dirname "$0")" || exit
status=0

# A setting that points nowhere is no reason to complain.
[ -e "${TF_CLI_CONFIG_FILE:-/}" ] || unset TF_CLI_CONFIG_FILE
export CHECKPOINT_DISABLE=1

if ! command -v terraform >/dev/null; then
  echo "SKIP terraform fmt and validate: terraform is not on the PATH"
else
  terraform fmt -check -diff -no-color || {
    echo "lint: run terraform fmt deploy" >&2
    status=1
  }
  # In a folder of its own: a fleet that is deployed from here stays out of it.
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  cp ./*.tf ./*.sh "$dir"
  if said=$(timeout 120 terraform -chdir="$dir" init -backend=false -input=false -no-color ${TF_MIRROR:+-plugin-dir="$TF_MIRROR"} 2>&1); then
    terraform -chdir="$dir" validate -no-color >"$dir/said" 2>&1 || {
      cat "$dir/said" >&2
      status=1
    }
  elif [ -n "${TF_REQUIRED:-}" ]; then
    printf '%s\n' "$said" >&2
    status=1
  else
    echo "SKIP terraform validate: the AWS provider cannot be fetched (TF_MIRROR=DIR takes it from a folder)"
  fi
fi

if command -v shellcheck >/dev/null; then
  shellcheck ./*.sh || status=1
else
  echo "SKIP shellcheck: it is not on the PATH"
fi
exit "$status"
