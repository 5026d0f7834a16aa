#!/bin/sh
# Checks everything Prometheus, Alertmanager and Grafana will read. Needs promtool and amtool (Debian: prometheus,
# prometheus-alertmanager) and a Python with grafana-foundation-sdk (PYTHON; default python3).
# Exit 0: all good; 1: something is wrong; 77: the tools are not here.
set -eu
cd "$(dirname "$0")"
for tool in promtool amtool; do
    command -v "$tool" >/dev/null 2>&1 || { echo "monitoring/check.sh: $tool is not installed" >&2; exit 77; }
done
python=${PYTHON:-python3}
"$python" -c 'import grafana_foundation_sdk' 2>/dev/null ||
    { echo "monitoring/check.sh: $python has no grafana-foundation-sdk (make dev)" >&2; exit 77; }
promtool check config prometheus/prometheus.yml
promtool check rules prometheus/rules/*.yml
promtool test rules prometheus/tests/*.yml
amtool check-config alertmanager/alertmanager.yml
"$python" grafana/build.py --check
echo "dashboards: equal to their code"
