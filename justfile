# Each recipe is one line that calls cargo or mcpmill.

# say what is there, what is missing and how to get it
setup:
    cargo run --release -- doctor

# format, lints, docs and declarations
check:
    cargo fmt --all --check && cargo clippy --workspace --all-targets -- -D warnings && cargo run -- check

test:
    cargo test --workspace

# a small run of the whole line
demo:
    cargo run --release -- run --set generate.samples=12

run *ARGS:
    cargo run --release -- run {{ARGS}}

# tool selection on the held-out rows of the latest run
eval *ARGS:
    cargo run --release -- eval select {{ARGS}}

# speed of the embedded model on this machine
bench MODEL:
    cargo run --release -p mcpmill-local --example bench -- {{MODEL}}

# remove what a killed run left behind
clean-envs:
    cargo run --release -- clean
