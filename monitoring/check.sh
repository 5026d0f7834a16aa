#!/bin/sh
# Checks everything Prometheus and Alertmanager will read. Needs promtool and amtool (Debian: prometheus,
# prometheus-alertmanager). Exit 0: all good; 1: something is wrong; 77: the tools are not here.
set -eu
cd "$(dirname "$0")"
for tool in promtool amtool; do
    command -v "$tool" >/dev/null 2>&1 || { echo "monitoring/check.sh: $tool is not installed" >&2; exit 77; }
done
promtool check config prometheus/prometheus.yml
promtool check rules prometheus/rules/*.yml
promtool test rules prometheus/tests/*.yml
amtool check-config alertmanager/alertmanager.yml
