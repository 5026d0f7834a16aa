# Built on a root file system made by mmdebstrap (hosts.py): systemd as process 1, SSH, Docker.
ARG BASE
FROM ${BASE} AS host
COPY stand_in/engine.py /engine.py
RUN systemctl mask systemd-udevd.service systemd-udevd-kernel.socket systemd-udevd-control.socket \
        systemd-modules-load.service systemd-sysctl.service getty.target console-getty.service docker-registry.service; \
    rm -f /etc/machine-id; touch /etc/machine-id; \
    mkdir -p /run/sshd /root/.ssh; chmod 700 /root/.ssh; rm -f /etc/ssh/ssh_host_*; \
    printf '%s\n' '[Unit]' 'Before=ssh.service' '[Service]' 'Type=oneshot' 'ExecStart=/usr/bin/ssh-keygen -A' \
        '[Install]' 'WantedBy=multi-user.target' > /etc/systemd/system/host-keys.service; \
    systemctl enable host-keys.service ssh.service docker.service
STOPSIGNAL SIGRTMIN+3
CMD ["/sbin/init"]

# The stand-in engine: Python, what it links against, its standard library, and the one script.
FROM host AS collect
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN mkdir -p /out/usr/local/bin /out/etc /out/tmp; \
    for file in /usr/bin/python3.11 /usr/lib/python3.11/lib-dynload/*.so; do \
        echo "$file"; { ldd "$file" | grep -o '/[^ ]*'; } || true; \
    done | sort -u | while read -r file; do cp --parents --dereference "$file" /out/; done; \
    cp -r --parents /usr/lib/python3.11 /out/; \
    rm -rf /out/usr/lib/python3.11/test /out/usr/lib/python3.11/__pycache__; \
    find /out -name '*.pyc' -delete; \
    ln -s python3.11 /out/usr/bin/python3; \
    install -m 0755 /engine.py /out/usr/local/bin/deploy-kit
FROM scratch AS stand-in
COPY --from=collect /out/ /
COPY settings.json /etc/stand-in.json
ENV PATH=/usr/local/bin:/usr/bin
USER 10001:10001
ENTRYPOINT ["/usr/local/bin/deploy-kit", "serve"]
CMD ["baseline"]

# A stand-in for Grafana, for which no package can be had: it shows that the password reaches a file, and only that.
FROM stand-in AS grafana
COPY --chmod=0755 stand_in/grafana.py /usr/local/bin/grafana
COPY --chmod=0755 stand_in/grafana.py /usr/bin/wget
ENTRYPOINT ["/usr/local/bin/grafana"]
CMD []
