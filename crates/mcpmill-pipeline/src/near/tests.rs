use super::*;

/// Clusters as sorted lists of texts, whatever their places.
fn told(texts: &[&str]) -> Vec<Vec<String>> {
    let found = clusters(texts);
    let mut by: std::collections::BTreeMap<usize, Vec<String>> = std::collections::BTreeMap::new();
    for (text, of) in texts.iter().zip(&found) {
        by.entry(*of).or_default().push((*text).to_owned());
    }
    let mut told: Vec<Vec<String>> = by.into_values().collect();
    told.iter_mut().for_each(|cluster| cluster.sort());
    told.sort();
    told
}

fn near(a: &str, b: &str) -> bool {
    let found = clusters(&[a, b]);
    found[0] == found[1]
}

/// A repeatable row of numbers.
fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    }
}

fn shuffled<'a>(texts: &[&'a str], seed: u64) -> Vec<&'a str> {
    let (mut texts, mut below) = (texts.to_vec(), numbers(seed));
    for i in (1..texts.len()).rev() {
        texts.swap(i, below(i + 1));
    }
    texts
}

/// Sentences of a small vocabulary, many of them close to others.
fn babble(count: usize, vocabulary: usize, length: usize) -> Vec<String> {
    let mut below = numbers(7);
    let mut word = || {
        let n = below(vocabulary);
        let letter = |n: usize| char::from(b'a' + (n % 26) as u8);
        [letter(n), letter(n / 26), letter(n / 676), letter(n * 7)].iter().collect::<String>()
    };
    (0..count).map(|_| (0..length).map(|_| word()).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn edits_are_near() {
    let base = "I need to check the stock. List the files in /srv/data that are larger than 20 KB.";
    for edit in [
        "I NEED TO CHECK THE STOCK. LIST THE FILES IN /SRV/DATA THAT ARE LARGER THAN 20 KB.",
        "i need to check the stock\n\nlist the files in /srv/data that are larger than twenty kb",
        "List the files in /srv/data that are larger than 20 KB. I need to check the stock.",
        "I need to verify the stock. Show the files in /srv/data that are larger than 20 KB!",
        "Please list the files in '/srv/data' that are bigger than 20 KB; I need to check the stock.",
    ] {
        assert!(near(base, edit), "{edit}");
    }
}

#[test]
fn one_changed_value_is_another_request() {
    for (a, b) in [
        ("Show the last 20 lines of the log.", "Show the last 30 lines of the log."),
        ("Show the last five lines of the log.", "Show the last six lines of the log."),
        ("Open the second paragraph of the plan.", "Open the third paragraph of the plan."),
        ("What is on my calendar for 2025-03-23?", "What is on my calendar for 2025-03-24?"),
        ("Read the file /srv/data/sales.csv for me.", "Read the file /srv/data/sales.txt for me."),
        ("Write to anna.haas@example.org about the bill.", "Write to anna.hass@example.org about the bill."),
        ("Fetch https://example.org/a/b and list its links.", "Fetch https://example.org/a/c and list its links."),
        ("Count the rows that contain 'urgent' in the sheet.", "Count the rows that contain 'billing' in the sheet."),
        ("Call the function total_price on the new order.", "Call the function total_cost on the new order."),
        ("Call the function totalPrice on the new order.", "Call the function totalCost on the new order."),
        ("What will the weather be like in Oslo this week?", "What will the weather be like in Bergen this week?"),
        ("Set the volume of the player to -3 please.", "Set the volume of the player to 3 please."),
        ("Pay the bill of $40 before the weekend.", "Pay the bill of €40 before the weekend."),
        ("Work out 5 + 3 and tell me the result.", "Work out 5 * 3 and tell me the result."),
        ("Add 5 and 5 and 10 for me.", "Add 5 and 10 and 10 for me."),
        ("Find a train from Oslo to Bergen tomorrow.", "Find a train from Bergen to Oslo tomorrow."),
        ("Replace 'red' with 'blue' in the text.", "Replace 'blue' with 'red' in the text."),
    ] {
        assert!(!near(a, b), "{a} | {b}");
        assert!(near(a, &format!("{a} Thanks")), "{a}");
    }
}

#[test]
fn a_name_counts_in_texts_without_capitals_too() {
    let texts = [
        "Tell me the weather in Oslo for today",
        "Tell me the weather in Bergen for today",
        "tell me the weather in oslo for today",
        "TELL ME THE WEATHER IN BERGEN FOR TODAY",
    ];
    let found = clusters(&texts);
    assert_eq!((found[0], found[1]), (found[2], found[3]));
    assert_ne!(found[0], found[1]);
}

#[test]
fn lists_may_change_their_order() {
    assert!(near("Add the files a.py, b.js and c.md to the index.", "Add the files c.md, a.py and b.js to the index."));
}

#[test]
fn other_requests_with_the_same_values_stay_apart() {
    assert!(!near("Read the file /srv/data/sales.csv and summarise it.", "Who changed /srv/data/sales.csv in the repository?"));
}

#[test]
fn languages_without_spaces_are_read() {
    assert!(near("请列出目录中所有大于五兆的文件名称。", "请列出目录中所有大于五兆的文件名称"));
    assert!(near("请帮我列出目录中所有大于５兆的文件名称", "请列出目录中所有大于5兆的文件名称。"));
    assert!(!near("请列出目录中所有大于5兆的文件名称。", "请列出目录中所有大于6兆的文件名称。"));
    assert!(!near("请列出目录中所有的文件名称。", "明天北京的天气怎么样？"));
    assert!(!near("把“苹果”的库存数量更新一下", "把“香蕉”的库存数量更新一下"));
    assert!(near("最後の行を表示してください", "最後の行を表示してください。"));
    assert!(near("ช่วยแสดงรายการไฟล์ทั้งหมดในโฟลเดอร์นี้", "ช่วยแสดงรายการไฟล์ทั้งหมดในโฟลเดอร์นี้ด้วย"));
    assert!(near("Welche Dateien sind größer als 5 KB?", "WELCHE DATEIEN SIND GRÖSSER ALS 5 KB"));
}

#[test]
fn clusters_do_not_depend_on_the_order_or_the_threads() {
    let mut all = babble(600, 60, 6);
    all.extend((0..60).map(|i| format!("Read the file number {} of the archive, please.", i % 20)));
    all.extend((0..60).map(|i| format!("please READ the file number {} of the old archive!", i % 20)));
    let texts: Vec<&str> = all.iter().map(String::as_str).collect();
    let expected = told(&texts);
    assert!(expected.iter().any(|cluster| cluster.len() > 3) && expected.len() > 20, "{}", expected.len());
    for seed in 0..5 {
        assert_eq!(told(&shuffled(&texts, seed)), expected);
    }
    let single = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert_eq!(single.install(|| told(&texts)), expected);
}

#[test]
fn copies_change_nothing() {
    let once = babble(200, 40, 6);
    let once: Vec<&str> = once.iter().map(String::as_str).collect();
    let mut many = once.clone();
    for (i, text) in once.iter().enumerate() {
        many.extend(std::iter::repeat_n(*text, i % 30 * 5));
    }
    let (few, found) = (clusters(&once), clusters(&shuffled(&many, 3)));
    let of = |texts: &[&str], found: &[usize]| {
        texts.iter().map(|t| (*t).to_owned()).zip(found.iter().map(|of| texts[*of].to_owned())).collect()
    };
    let names: std::collections::BTreeMap<String, String> = of(&once, &few);
    assert_eq!(of(&shuffled(&many, 3), &found), names);
}

#[test]
fn the_representative_is_the_first_copy_and_stands_for_itself() {
    let texts = ["b b b", "Open it.", "open it", "Open it.", "open it"];
    assert_eq!(clusters(&texts), [0, 1, 1, 1, 1]);
    assert_eq!(clusters(&[]), [0_usize; 0]);
    assert_eq!(clusters(&["", "", "!", "?", "🦀", "🐙", "🦀"]), [0, 0, 2, 3, 4, 5, 4]);
}

#[test]
fn small_steps_make_no_chain() {
    // Each text shares nine of ten words with the next, the first none with the last.
    let word = |n: usize| format!("{}{}x", char::from(b'a' + (n / 20) as u8), char::from(b'a' + (n % 20) as u8));
    let texts: Vec<String> = (0..60).map(|from| (from..from + 10).map(word).collect::<Vec<_>>().join(" ")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let found = clusters(&texts);
    assert!(found.iter().any(|of| found.iter().filter(|other| *other == of).count() > 2), "steps are near");
    for (i, a) in found.iter().enumerate() {
        for (j, b) in found.iter().enumerate().skip(i) {
            assert!(a != b || j - i < 8, "{i} and {j} share {} words", 10_usize.saturating_sub(j - i));
        }
    }
}

#[test]
fn a_million_copies_are_one() {
    let texts = vec!["Read the file, please."; 1_000_000];
    assert!(clusters(&texts).iter().all(|of| *of == 0));
}

#[test]
fn long_texts_are_read_to_their_end() {
    let long = "word ".repeat(200_000);
    let (one, two) = (format!("{long} end"), format!("{long} other"));
    assert!(near(&one, &format!("{one}.")));
    assert!(!near(&one, &two));
    assert_eq!(clusters(&[&"a".repeat(1_000_000), &"'".repeat(1_000_000), &"1/".repeat(500_000)]), [0, 1, 2]);
}

#[test]
fn many_texts_of_few_words_cost_no_square() {
    // All pairs of these would be half a billion.
    let texts = babble(30_000, 12, 9);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let started = std::time::Instant::now();
    let found = clusters(&texts);
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    assert!(found.iter().any(|of| *of != found[0]));
}

#[test]
fn settings_decide() {
    let (a, b) = ("Show the newest letters of the choir.", "Show the oldest letters of the club.");
    let strict = Settings { plain_threshold: 0.99, ..Settings::default() };
    let loose = Settings { plain_threshold: 0.2, ..Settings::default() };
    assert_eq!(clusters_with(&[a, b], &strict), [0, 1]);
    assert_eq!(clusters_with(&[a, b], &loose), [0, 0]);
}
