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
    in
    {
      inherit stacks;

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
            pkgs.prometheus
            pkgs.prometheus-alertmanager
            pkgs.shellcheck
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
      });
    };
}
