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
async fn calls_that_hang_hold_up_no_other_when_the_limit_is_low() {
    let flow = Arc::new(flow(16));
    // Failures beside answers bring the limit down to a quarter.
    for n in 0..400 {
        let mut slot = flow.enter(1).await.unwrap();
        slot.send(sleep(Duration::from_millis(100))).await;
        slot.end(if n % 5 == 0 { Ended::Answered(1) } else { DOWN }, "status 503");
    }
    assert_eq!(flow.state().pace.limit(), 4);
    let hanging: Vec<_> = (0..10)
        .map(|_| {
            let flow = Arc::clone(&flow);
            tokio::spawn(async move {
                let mut slot = flow.enter(1).await.unwrap();
                slot.send(sleep(Duration::from_secs(120))).await;
                slot.end(DOWN, "no answer in time");
            })
        })
        .collect();
    let start = Instant::now();
    sleep(Duration::from_millis(1)).await;
    for _ in 0..100 {
        let mut slot = flow.enter(1).await.unwrap();
        slot.send(sleep(Duration::from_millis(100))).await;
        slot.end(Ended::Answered(1), "");
    }
    assert!((10..20).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    let held: Vec<_> = all_slow(&flow, 6).await;
    assert!(tokio::time::timeout(Duration::from_secs(60), flow.enter(1)).await.is_err(), "never more than sixteen at once");
    drop(held);
    for hang in hanging {
        hang.await.unwrap();
    }
    let state = flow.state();
    assert_eq!((state.slow, state.slots), (0, state.limit()), "what was lent is given back");
}

/// So many slots, all held.
async fn all_slow(flow: &Flow, count: usize) -> Vec<Slot<'_>> {
    let mut held = Vec::new();
    for _ in 0..count {
        let mut slot = flow.enter(1).await.unwrap();
        // Slow itself, it leaves its place to the next.
        slot.give_way();
        held.push(slot);
    }
    held
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
async fn a_pause_holds_for_all_and_a_long_one_is_not_waited_for() {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&said);
    let flow = flow(4).with_notes(Arc::new(move |text| notes.lock().unwrap().push(text)));
    let start = Instant::now();
    flow.enter(1).await.unwrap().end(Ended::Busy(Some(Duration::from_secs(7))), "");
    let (a, b) = tokio::join!(flow.enter(1), flow.enter(1));
    assert_eq!(start.elapsed().as_secs(), 7);
    drop((a, b));
    assert!(said.lock().unwrap().is_empty(), "seven seconds are no news");
    let held = [flow.enter(1).await.unwrap(), flow.enter(1).await.unwrap()];
    let busy = |seconds| Ended::Busy(Some(Duration::from_secs(seconds)));
    held.into_iter().for_each(|slot| slot.end(busy(40), "status 429"));
    flow.enter(1).await.unwrap().end(busy(3600), "status 429");
    assert_eq!(start.elapsed().as_secs(), 47);
    let GivenUp(why) = flow.enter(1).await.err().unwrap();
    assert!(why.contains("no calls for another 3600 s (status 429), until "), "{why}");
    tokio::time::advance(Duration::from_secs(3599)).await;
    assert!(flow.enter(1).await.is_err() && flow.given_up().is_some(), "never before the time");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(flow.enter(1).await.is_ok() && flow.given_up().is_none());
    let said = said.lock().unwrap();
    assert_eq!(said.len(), 2, "one pause is told once: {said:?}");
    assert!(said[0].contains("pause of 40 s (status 429)") && said[1].contains("3600 s"), "{said:?}");
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
                        Err(GivenUp(why)) => return why,
                    }
                }
            })
        })
        .collect();
    for call in calls {
        let why = call.await.unwrap();
        let down = why.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap();
        assert!((60..100).contains(&down) && why.contains("(no connection)"), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_refused_is_not_tried_by_all() {
    let flow = Arc::new(flow(2));
    let sent = Arc::new(AtomicUsize::new(0));
    for _ in 0..50 {
        match flow.enter(1).await {
            Ok(slot) => {
                sent.fetch_add(1, Ordering::SeqCst);
                slot.end(Ended::Denied, "status 401");
            }
            Err(GivenUp(why)) => assert!(why.contains("turns calls away (status 401)"), "{why}"),
        }
    }
    assert_eq!(sent.load(Ordering::SeqCst), 3);
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
