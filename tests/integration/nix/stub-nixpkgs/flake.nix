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
        python311 = stub "python3" // { withPackages = _: stub "python3-with-packages"; };
        ansible = stub "ansible";
        docker-client = stub "docker";
        docker-compose = stub "docker-compose";
        git = stub "git";
        gnumake = stub "make";
        hadolint = stub "hadolint";
        bashInteractive = derive system "bash" "mkdir -p $out/bin; ln -s /bin/bash $out/bin/bash"; # `nix develop` runs it
        binutils = stub "strip";
        coreutils = stub "ls";
        gcc = stub "gcc";
        numactl = stub "numactl";
        patch = stub "patch";
        ruff = stub "ruff";
        uv = stub "uv";
        zlib = stub "zlib";
        stdenv.cc.cc.lib = stub "libstdc++";
        prometheus = stub "promtool";
        prometheus-alertmanager = stub "amtool";
        shellcheck = stub "shellcheck";
        # `nix develop` asks for the variables, and for the name of an output.
        mkShell = arguments: derivation ((removeAttrs arguments [ "packages" ]) // {
          inherit system;
          name = "shell";
          builder = "/bin/bash";
          outputs = [ "out" ];
          PATH = "/usr/bin:/bin";
          packages = toString arguments.packages;
          args = [ "-euc" "echo $packages > $out\n:" ];
        });
        writeShellScript = name: text: derive system name ''
          { echo '#!/bin/bash'; cat <<'TEXT'
          ${text}
          TEXT
          } > $out
          chmod +x $out
        '';
        runCommand = name: arguments: script:
          derive system name (
            # promtool, ruff and pytest are the ones of whoever runs the tests: test_flake.py writes tools/ beside
            # this file. python3 is the machine's own.
            ''
              PATH=${./tools}:$PATH
              python3() { if [ "$2" = pytest ]; then tested-python "$@"; else /usr/bin/python3 "$@"; fi; }
            '' + script
          );
        # Writes what `docker load` reads: one layer with the contents and all they refer to.
        dockerTools.buildLayeredImage = { name, tag, contents, config, extraCommands ? "" }:
          derive system "image" ''
            mkdir root; cd root
            ${extraCommands}
            for path in ${toString contents}; do mkdir -p nix/store; cp -r "$path" nix/store/; cp -rT "$path" .; done
            tar --create --file ../layer.tar .
            cd ..
            cp ${builtins.toFile "config.json" (builtins.unsafeDiscardStringContext (builtins.toJSON { inherit config; architecture = "amd64"; os = "linux"; }))} config.json
            echo '[{"Config": "config.json", "RepoTags": ["${name}:${tag}"], "Layers": ["layer.tar"]}]' > manifest.json
            tar --create --file $out manifest.json config.json layer.tar
          '';
      };
    in
    {
      lib = { inherit genAttrs; };
      legacyPackages = genAttrs [ "x86_64-linux" "aarch64-linux" ] packagesFor;
    };
}
