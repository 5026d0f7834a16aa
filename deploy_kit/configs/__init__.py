"""Reading configs/: five kinds of TOML file, each checked against a schema; unknown keys are errors."""
