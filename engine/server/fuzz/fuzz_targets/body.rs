//! Any body: a request that fits, or an error of the client's that says what is wrong.
#![no_main]

use libfuzzer_sys::fuzz_target;
use server::api::error::ApiError;
use server::api::{Endpoint, Served, job};
use std::sync::LazyLock;

static SERVED: LazyLock<Served> = LazyLock::new(server_fuzz::served);

fn refused(error: &ApiError) {
    assert!(error.status.is_client_error() && !error.message.is_empty(), "{error:?}");
}

fuzz_target!(|body: &[u8]| {
    for endpoint in [Endpoint::Completions, Endpoint::Chat] {
        match job::read(endpoint, &SERVED, body, 7) {
            Ok(job) => {
                assert!((1..=SERVED.max_prompts).contains(&job.requests.len()));
                for request in &job.requests {
                    let tokens = request.prompt.len() as u64 + u64::from(request.max_tokens);
                    assert!(!request.prompt.is_empty() && request.max_tokens > 0 && tokens <= SERVED.context.into());
                    assert!(request.prompt.iter().chain(&request.stop).all(|id| id.0 < SERVED.vocab_size));
                }
            }
            Err(error) => refused(&error),
        }
    }
    job::tokens(&SERVED, body).err().iter().for_each(refused);
    job::text(&SERVED, body).err().iter().for_each(refused);
});
