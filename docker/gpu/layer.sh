#!/bin/sh
# One layer of the GPU image: installs a group of the lock, trims it, and leaves no cache.  layer.sh STACK GROUP
# Reads pip's configuration and a CA bundle where the build was given them as secrets.
set -eu
[ $# -eq 2 ] || { echo "usage: layer.sh STACK GROUP" >&2; exit 2; }
stack=$1 group=$2
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
if [ -s /run/secrets/pip.conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip.conf; fi
if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt SSL_CERT_FILE=/run/secrets/ca.crt; fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
sh "$here/install.sh" /opt/engine/bin/python "$here/../requirements/$stack.txt" "$group" --quiet --find-links /wheels
sh "$here/trim.sh" /opt/engine/lib/python3.11/site-packages
rm -rf /root/.cache /tmp/*
