//! Generates the messages from `proto/`, without protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["gateway/v1/gateway.proto", "grpc/health/v1/health.proto"];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
