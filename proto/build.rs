//! Generates the messages from `proto/`, without protoc.
//!
//! It owns the one setting that matters: bytes fields become `Bytes`, which share their buffer
//! instead of copying it. It writes to the build's folder alone and never touches the sources.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "gateway/v1/gateway.proto",
        "gateway/upstream/v1/upstream.proto",
        "gateway/control/v1/control.proto",
        "grpc/health/v1/health.proto",
    ];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
