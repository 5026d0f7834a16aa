# A STAND-IN for nixpkgs, for tests on machines that cannot reach the real one. It knows the few names
# flake.nix uses, and builds with the machine's own bash. A pass here proves evaluation and wiring, not packages.
{
  outputs =
    { self }:
    let
      genAttrs = names: f: builtins.listToAttrs (map (name: { inherit name; value = f name; }) names);
      # A builder that ends in a program may be reaped before Nix sees its status: end in a builtin.
      derive = system: name: script: derivation {
        inherit name system;
        builder = "/bin/bash";
        PATH = "/usr/bin:/bin";
        args = [ "-euc" (script + "\n:") ];
      };
      packagesFor = system: rec {
        stub = name: derive system name "mkdir -p $out/bin; echo stub > $out/bin/${name}";
        python311 = stub "python3";
        ansible = stub "ansible";
        docker-client = stub "docker";
        docker-compose = stub "docker-compose";
        git = stub "git";
        gnumake = stub "make";
        hadolint = stub "hadolint";
        prometheus = stub "promtool";
        prometheus-alertmanager = stub "amtool";
        shellcheck = stub "shellcheck";
        mkShell = arguments: derive system "shell" "echo ${toString arguments.packages} > $out";
        writeShellScript = name: text: derive system name ''
          { echo '#!/bin/bash'; cat <<'TEXT'
          ${text}
          TEXT
          } > $out
          chmod +x $out
        '';
        runCommand = name: arguments: script:
          derive system name (
            # The stand-in's promtool does nothing; the real one runs in the test command.
            "promtool() { test -e \"$3\"; }\n" + script
          );
      };
    in
    {
      lib = { inherit genAttrs; };
      legacyPackages = genAttrs [ "x86_64-linux" "aarch64-linux" ] packagesFor;
    };
}
