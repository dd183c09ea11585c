use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn flow(most: usize) -> Flow {
    let bounds = Bounds { most, requests_per_minute: None, tokens_per_minute: None, give_up_after: Duration::from_secs(60) };
    Flow::new("m", bounds)
}

const DOWN: Ended = Ended::Failed { overload: true, pause: None };

#[tokio::test(start_paused = true)]
async fn a_slow_call_holds_its_slot_and_no_other() {
    let flow = flow(2);
    let _slow = flow.enter(1).await.unwrap();
    for _ in 0..100 {
        flow.enter(1).await.unwrap().end(Ended::Answered(1), "");
    }
    let second = flow.enter(1).await.unwrap();
    let third = tokio::time::timeout(Duration::from_secs(1), flow.enter(1)).await;
    assert!(third.is_err(), "never more than two at once");
    drop(second);
    assert!(flow.enter(1).await.is_ok(), "a dropped call gives its slot back, and so does one that stopped waiting");
}

#[tokio::test(start_paused = true)]
async fn a_busy_provider_gets_fewer_calls_and_later_more_again() {
    let flow = Arc::new(flow(20));
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(flow.enter(1).await.unwrap());
    }
    held.into_iter().for_each(|slot| slot.end(Ended::Busy(None), "status 429"));
    let at_once = async |flow: &Arc<Flow>, calls: usize| {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let calls: Vec<_> = (0..calls)
            .map(|_| {
                let (flow, now, most) = (Arc::clone(flow), Arc::clone(&now), Arc::clone(&most));
                tokio::spawn(async move {
                    let slot = flow.enter(1).await.unwrap();
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    slot.end(Ended::Answered(1), "");
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        most.load(Ordering::SeqCst)
    };
    let first = at_once(&flow, 40).await;
    assert!((14..20).contains(&first), "{first}");
    assert_eq!(at_once(&flow, 200).await, 20);
    assert_eq!(flow.slots.available_permits(), 20, "no slot is lost and none is made");
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_for_all_and_no_longer_than_patience() {
    let flow = flow(4);
    let start = Instant::now();
    flow.enter(1).await.unwrap().end(Ended::Busy(Some(Duration::from_secs(7))), "");
    let (a, b) = tokio::join!(flow.enter(1), flow.enter(1));
    assert_eq!(start.elapsed().as_secs(), 7);
    drop((a, b));
    flow.enter(1).await.unwrap().end(Ended::Busy(Some(Duration::from_secs(100_000))), "");
    flow.enter(1).await.unwrap().end(Ended::Answered(1), "");
    assert_eq!(start.elapsed().as_secs(), 67);
}

#[tokio::test(start_paused = true)]
async fn a_dead_provider_is_probed_by_one_and_all_go_on_when_it_answers() {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&said);
    let flow = Arc::new(flow(8).with_notes(Arc::new(move |text| notes.lock().unwrap().push(text))));
    let sent = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let calls: Vec<_> = (0..50)
        .map(|_| {
            let (flow, sent) = (Arc::clone(&flow), Arc::clone(&sent));
            tokio::spawn(async move {
                loop {
                    let slot = flow.enter(1).await.unwrap();
                    sent.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    if start.elapsed() > Duration::from_secs(20) {
                        slot.end(Ended::Answered(1), "");
                        return;
                    }
                    slot.end(DOWN, "status 503");
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    assert!((20..40).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    // Fifty that were answered, eight that were under way, and the probes.
    assert!(sent.load(Ordering::SeqCst) < 50 + 8 + 10, "{sent:?}");
    let said = said.lock().unwrap();
    assert!(said.len() == 2 && said[0].contains("does not answer (status 503)") && said[1].contains("answers again"), "{said:?}");
    assert!(!flow.is_down());
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_stays_dead_is_given_up_by_all_who_wait() {
    let flow = Arc::new(flow(3));
    let calls: Vec<_> = (0..30)
        .map(|_| {
            let flow = Arc::clone(&flow);
            tokio::spawn(async move {
                loop {
                    match flow.enter(1).await {
                        Ok(slot) => slot.end(DOWN, "no connection"),
                        Err(GivenUp(down)) => return down,
                    }
                }
            })
        })
        .collect();
    for call in calls {
        let down = call.await.unwrap().as_secs();
        assert!((60..100).contains(&down), "{down}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_leaves_its_place() {
    let flow = flow(2);
    for _ in 0..5 {
        flow.enter(1).await.unwrap().end(DOWN, "");
    }
    let probe = flow.enter(1).await.unwrap();
    assert!(probe.is_probe());
    drop(probe);
    let probe = flow.enter(1).await.unwrap();
    assert!(probe.is_probe());
    probe.end(Ended::Refused, "status 400");
    assert!(!flow.is_down(), "a provider that refuses is there");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_charged_by_estimate_and_corrected() {
    let bounds = Bounds {
        most: 4,
        requests_per_minute: NonZeroU32::new(600),
        tokens_per_minute: NonZeroU32::new(6000),
        give_up_after: Duration::from_secs(60),
    };
    let flow = Flow::new("m", bounds);
    let start = Instant::now();
    flow.enter(6000).await.unwrap().end(Ended::Answered(1000), "");
    flow.enter(5000).await.unwrap().end(Ended::Busy(None), "");
    flow.enter(5000).await.unwrap().end(Ended::Answered(5000), "");
    assert_eq!(start.elapsed(), Duration::ZERO, "what was not used is there for others");
    let waited = tokio::time::timeout(Duration::from_secs(5), flow.enter(1000)).await;
    assert!(waited.is_err());
    flow.enter(1000).await.unwrap().end(Ended::Answered(1000), "");
    assert_eq!(start.elapsed().as_secs(), 10, "a hundred a second");
}

#[tokio::test(start_paused = true)]
async fn retries_are_a_share_of_the_calls_and_of_time() {
    let flow = flow(4);
    let start = Instant::now();
    for _ in 0..100 {
        flow.begin();
    }
    for _ in 0..40 {
        flow.retry().await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "twenty to begin with, and one for every five calls");
    flow.retry().await;
    assert_eq!(start.elapsed().as_secs(), 1, "then one a second for four calls at once");
}
