//! A command that may have been executed is never sent again: on one server, behind sentinels, and
//! in a cluster.

use std::sync::{Arc, Mutex};

use rl_core::{FailureKind, Limit, Origin, RateLimiter, RedisStore, RedisStoreBuilder, Subject};
use rl_tests::Sentinels;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::{PATIENCE, patient};

/// A fake server, which is also its own sentinel and its own cluster. When it is asked for a
/// decision, it closes the connection without a reply.
struct HangsUp {
    port: u16,
    heard: Arc<Mutex<Vec<String>>>,
}

impl HangsUp {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let all = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(BufReader::new(stream), port, Arc::clone(&all)));
            }
        });
        Self { port, heard }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn decisions(&self) -> usize {
        self.heard.lock().unwrap().iter().filter(|command| *command == "EVALSHA").count()
    }
}

async fn serve(mut stream: BufReader<TcpStream>, port: u16, heard: Arc<Mutex<Vec<String>>>) {
    while let Some(words) = read_command(&mut stream).await {
        heard.lock().unwrap().push(words[0].clone());
        let address = format!("$9\r\n127.0.0.1\r\n:{port}\r\n");
        let answer = match (&*words[0], words.get(1).map(|word| &**word)) {
            ("EVALSHA", _) => return,
            ("CLUSTER", _) => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{address}"),
            ("SENTINEL", Some("MASTER")) => "*0\r\n".to_owned(),
            ("SENTINEL", _) => format!("*2\r\n$9\r\n127.0.0.1\r\n$5\r\n{port:05}\r\n"),
            ("SCRIPT", Some("LOAD")) => "$1\r\nx\r\n".to_owned(),
            ("INFO" | "CONFIG" | "HELLO", _) => "-NOPERM no\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads the next command, for example `*2 $3 GET $1 x`.
async fn read_command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    async fn number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        line.get(1..)?.trim_end().parse().ok()
    }
    let mut words = Vec::new();
    for _ in 0..number(stream).await? {
        let mut word = vec![0; number(stream).await? + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Some(words)
}

#[tokio::test]
async fn a_decision_that_may_have_been_made_is_not_repeated() {
    type Connect = fn(&str) -> RedisStoreBuilder;
    let ways: [(&str, Connect); 3] = [
        ("server", |url| RedisStore::builder(url)),
        ("sentinel", |url| RedisStore::sentinel([url], Sentinels::NAME)),
        ("cluster", |url| RedisStore::cluster([url])),
    ];
    for (what, connect) in ways {
        let server = HangsUp::start().await;
        let store = patient(connect(&server.url())).await;
        let limiter = RateLimiter::builder().limit(Limit::per_hour(3)).store(store);
        let limiter = limiter.deadline(PATIENCE).build().unwrap();
        // Only three requests are made, because the third failure opens the breaker.
        for asked in 1..=3 {
            let decision = limiter.check(&Subject::user("alice"), 1).await;
            let lost = Origin::FailedOpen(FailureKind::Unavailable);
            assert_eq!(decision.origin(), lost, "{what}");
            assert_eq!(server.decisions(), asked, "{what}");
        }
    }
}
