{
  description = "Deploy Kimi-class models with SGLang on PCIe-only GPU boxes";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forAll = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});

      # The same pins as everywhere else: configs/stacks is the one place that holds versions.
      stacks = nixpkgs.lib.genAttrs [ "current" "rollback" "rehearsal" ] (
        name: builtins.fromTOML (builtins.readFile (./configs/stacks + "/${name}.toml"))
      );
      pythonOf = pkgs: pkgs.${"python" + builtins.replaceStrings [ "." ] [ "" ] stacks.current.versions.python};

      # Python's packages are those of the hash locks, here too. A lock holds no addresses, so the wheels are fetched
      # first (docs/images.md) into wheels/, and a build checks each against the lock.
      wheels = if builtins.pathExists ./wheels then "${./wheels}" else "";
      installLocked = lock: ''
        if [ -z "${wheels}" ]; then
          echo "there is no folder wheels/ (allowed: the wheels of ${baseNameOf lock}):" \
            "pip download --no-deps --require-hashes --only-binary :all: -r ${baseNameOf lock} -d wheels" >&2
          exit 1
        fi
        python3 -m venv $out
        $out/bin/python -m pip install --no-cache-dir --no-deps --no-index --require-hashes --only-binary :all: \
          --quiet --find-links "${wheels}" -r ${lock}
      '';
      installKit = ''
        mkdir source
        cp -r ${./deploy_kit} source/deploy_kit
        cp ${./pyproject.toml} source/pyproject.toml
        cp ${./README.md} source/README.md
        cp ${./LICENSE} source/LICENSE
        chmod -R u+w source
        $out/bin/python -m pip install --no-cache-dir --no-deps --no-index --no-build-isolation --quiet ./source
      '';
      labelsOf = stack: {
        "org.opencontainers.image.licenses" = "Apache-2.0";
        "org.opencontainers.image.revision" = self.rev or "unknown";
        "org.opencontainers.image.version" = stack.versions.sglang;
        "io.deploy-kit.stack" = stack.name;
        "io.deploy-kit.sglang" = stack.versions.sglang;
        "io.deploy-kit.torch" = stack.versions.torch;
      };
      tagOf = stack: builtins.elemAt (builtins.split ":" stack.image) 2;
      # What wheels for manylinux expect of the system.
      librariesOf = pkgs: "${pkgs.stdenv.cc.cc.lib}/lib:${pkgs.zlib}/lib:${pkgs.numactl}/lib";
      kitFolder = pkgs: pkgs.runCommand "deploy-kit-configs" { } ''
        mkdir -p $out/opt/deploy-kit
        cp -r ${./configs} $out/opt/deploy-kit/configs
      '';
    in
    {
      inherit stacks;

      # OCI images:  nix build .#exporter-image && docker load < result
      packages = forAll (
        pkgs:
        let
          python = pythonOf pkgs;
          configs = kitFolder pkgs;
          exporter = pkgs.runCommand "deploy-kit-exporter" { nativeBuildInputs = [ python ]; } ''
            ${installLocked ./requirements/runtime.txt}
            cp -r ${./deploy_kit} $out/lib/python${stacks.current.versions.python}/site-packages/deploy_kit
          '';
          rehearsal =
            pkgs.runCommand "deploy-kit-rehearsal"
              {
                nativeBuildInputs = [ python pkgs.gcc pkgs.patch pkgs.binutils ];
                LD_LIBRARY_PATH = librariesOf pkgs;
              }
              ''
                ${installLocked ./docker/requirements/rehearsal-torch-cpu.txt}
                cp -r ${./docker} docker
                chmod -R u+w docker
                sh docker/rehearsal/install.sh $out/bin/python --quiet --no-index --find-links "${wheels}"
                ${installKit}
                mkdir root
                cp -r ${./configs} root/configs
                cp -r docker root/docker
                DEPLOY_KIT_CONFIGS=$PWD/root/configs $out/bin/deploy-kit patches --stack current --apply
                $out/bin/deploy-kit-rehearsal ngram build
                sh docker/rehearsal/trim.sh $out/lib/python${stacks.current.versions.python}/site-packages
                mkdir -p $out/opt/rehearsal
                $out/bin/deploy-kit-rehearsal models build $out/opt/rehearsal/models
              '';
        in
        {
          inherit exporter rehearsal;

          exporter-image = pkgs.dockerTools.buildLayeredImage {
            name = "deploy-kit/exporter";
            tag = tagOf stacks.current;
            contents = [ exporter configs ];
            config = {
              Entrypoint = [ "${exporter}/bin/python" "-m" "deploy_kit.exporter" ];
              User = "10001:10001";
              Env = [ "DEPLOY_KIT_CONFIGS=/opt/deploy-kit/configs" ];
              ExposedPorts = { "9400/tcp" = { }; };
              Labels = labelsOf stacks.current;
            };
          };

          rehearsal-image = pkgs.dockerTools.buildLayeredImage {
            name = "deploy-kit/rehearsal";
            tag = tagOf stacks.rehearsal;
            contents = [ rehearsal configs pkgs.bashInteractive pkgs.coreutils ];
            extraCommands = "mkdir -p -m 1777 tmp";
            config = {
              Entrypoint = [ "${rehearsal}/bin/deploy-kit" "serve" ];
              Cmd = [ "baseline" ];
              User = "10001:10001";
              WorkingDir = "/tmp";
              Env = [
                "DEPLOY_KIT_CONFIGS=/opt/deploy-kit/configs"
                "DEPLOY_KIT_HOST=rehearsal"
                "HOME=/tmp"
                "LD_LIBRARY_PATH=${librariesOf pkgs}"
                "PYTHONDONTWRITEBYTECODE=1"
              ];
              ExposedPorts = { "30000/tcp" = { }; "9400/tcp" = { }; };
              Labels = labelsOf stacks.rehearsal;
            };
          };
        }
      );

      # Python's own packages come hash-locked from requirements/ into .venv (`make dev`), as everywhere.
      devShells = forAll (pkgs: {
        default = pkgs.mkShell {
          packages = [
            (pythonOf pkgs)
            pkgs.ansible
            pkgs.docker-client
            pkgs.docker-compose
            pkgs.git
            pkgs.gnumake
            pkgs.hadolint
            pkgs.patch
            pkgs.prometheus
            pkgs.prometheus-alertmanager
            pkgs.ruff
            pkgs.shellcheck
            pkgs.uv
          ];
          DEPLOY_KIT_SGLANG_VERSION = stacks.current.versions.sglang;
        };
      });

      apps = forAll (pkgs: {
        default = {
          type = "app";
          program = "${pkgs.writeShellScript "deploy-kit" ''
            set -eu
            test -x .venv/bin/deploy-kit || { echo "run 'make dev' first, in the repository's root" >&2; exit 1; }
            exec .venv/bin/deploy-kit "$@"
          ''}";
        };
      });

      checks = forAll (pkgs: {
        # The configurations parse, and what Nix reads from them is what the images are built from.
        stacks = pkgs.runCommand "stacks" { } ''
          test "${stacks.current.name}" = current
          test "${stacks.rollback.name}" = rollback
          test "${stacks.current.versions.python}" = "${stacks.rehearsal.versions.python}"
          echo "current: SGLang ${stacks.current.versions.sglang}; rollback: ${stacks.rollback.versions.sglang}" > $out
        '';
        prometheus = pkgs.runCommand "prometheus" { nativeBuildInputs = [ pkgs.prometheus ]; } ''
          promtool check rules ${./monitoring/prometheus}/rules/*.yml
          echo ok > $out
        '';
        format = pkgs.runCommand "format" { nativeBuildInputs = [ pkgs.ruff ]; } ''
          cp ${./pyproject.toml} pyproject.toml
          ruff format --no-cache --check --config pyproject.toml ${./deploy_kit} ${./tests/unit}
          echo ok > $out
        '';
        # The stacks' unit tests, which need no more than deploy_kit's own dependencies (here nixpkgs' versions of them).
        unit =
          pkgs.runCommand "unit"
            {
              nativeBuildInputs = [
                ((pythonOf pkgs).withPackages (ps: [
                  ps.httpx ps.hypothesis ps.prometheus-client ps.pydantic ps.pytest ps.pytest-timeout ps.pyyaml ps.rich ps.typer
                ]))
                pkgs.patch
              ];
            }
            ''
              mkdir -p work/tests/unit
              cp ${./flake.nix} work/flake.nix
              cp -r ${./deploy_kit} work/deploy_kit
              cp -r ${./configs} work/configs
              cp -r ${./docker} work/docker
              cp -r ${./tests/unit/stacks} work/tests/unit/stacks
              mkdir work/docs
              cp -r ${./docs/receipts} work/docs/receipts
              cp ${./docs/levers.md} work/docs/levers.md
              chmod -R u+w work
              cd work
              HOME=$PWD PYTHONPATH=$PWD python3 -m pytest -q -p no:cacheprovider tests/unit/stacks
              echo ok > $out
            '';
      });
    };
}
