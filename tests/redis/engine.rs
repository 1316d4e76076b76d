//! The program that serves Redis: `redis-server`, or the program that `RL_REDIS_SERVER` names.

use rl_tests::{Engine, RedisCluster, RedisServer, Sentinels};

/// `tests/engines` reads the printed line, so that its table shows what has run.
#[tokio::test(flavor = "multi_thread")]
async fn servers_sentinels_and_clusters_run_the_program_of_the_variable() {
    let wanted = Engine::of_program();

    assert_eq!(RedisServer::start().engine().await, wanted);
    let sentinels = Sentinels::start().await;
    for mut sentinel in sentinels.operators().await {
        assert_eq!(sentinel.engine().await, wanted);
    }
    let cluster = RedisCluster::start().await;
    for mut member in cluster.operators().await {
        assert_eq!(member.engine().await, wanted);
    }
    println!("engine: {wanted}");
}
