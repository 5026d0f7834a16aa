#!/bin/sh
# Starts dockerd where systemd is not process 1. Usage: start-dockerd.sh PID_FILE LOG_FILE MTU
set -eu
pid_file=$1 log_file=$2 mtu=$3
# A pid file left by a machine that was switched off names no living dockerd.
if [ -f "$pid_file" ] && kill -0 "$(cat "$pid_file")" 2>/dev/null; then
    exit 0
fi
rm -f "$pid_file" /var/run/docker.sock
setsid dockerd --pidfile "$pid_file" --mtu "$mtu" </dev/null >>"$log_file" 2>&1 &
