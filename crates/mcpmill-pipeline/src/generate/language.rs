//! Whether a text is written in the language it is said to be in. A label that nobody checks is none.
//!
//! The script tells most languages apart. Where several share one, the small words of another language count against a
//! text that has few of its own; so does a guess by trigrams (`whatlang`), where it is sure, names no near relative, and
//! small words of the own language are missing. Good text must not be refused for being short.

use whatlang::{Lang, Script, detect_script};

use super::values;

/// Letters below which nothing is said about the script of a text.
const FEW: usize = 4;
/// Letters below which nothing is said about its language.
const SOME: usize = 24;
/// One word in so many is a small one, in a text of its language.
const SMALL_ONE_IN: usize = 8;

/// So many small words, and one in so many of all, speak for a language.
const MANY_SMALL: usize = 3;
const MANY_ONE_IN: usize = 4;

/// Where one word in so many is a small one of the language itself, no other can have many more.
const OWN_ONE_IN: usize = 3;

/// A language, by what can be seen of it.
struct Traits {
    code: &'static str,
    own: Lang,
    scripts: &'static [Script],
    /// Relatives that a guess takes for it.
    near: &'static [Lang],
    /// Its most common small words.
    small: &'static str,
}

const LATIN: &[Script] = &[Script::Latin];
const CJK: &[Script] = &[Script::Hiragana, Script::Katakana, Script::Mandarin];

const fn traits(code: &'static str, own: Lang, scripts: &'static [Script], near: &'static [Lang], small: &'static str) -> Traits {
    Traits { code, own, scripts, near, small }
}

/// The languages that can be asked for.
const ALL: [Traits; 24] = [
    traits("ar", Lang::Ara, &[Script::Arabic], &[Lang::Pes, Lang::Urd], "في من على إلى هذا هذه هل ما أن عن لا كم متى التي الذي"),
    traits("bn", Lang::Ben, &[Script::Bengali], &[], ""),
    traits(
        "cs",
        Lang::Ces,
        LATIN,
        &[Lang::Slk, Lang::Pol, Lang::Slv, Lang::Hrv],
        "a v ve na se si je do z ze s k že mi to ten tuto tento která které který jak kdy kolik prosím nemohu jsem jsou bude pro za od po podle o",
    ),
    traits(
        "da",
        Lang::Dan,
        LATIN,
        &[Lang::Nob, Lang::Swe],
        "og i at er en et det den de til på for med af jeg kan ikke du mig hvor hvordan hvilken hvilke der som om har fra vi vil skal hvad denne dette",
    ),
    traits(
        "de",
        Lang::Deu,
        LATIN,
        &[Lang::Nld, Lang::Yid],
        "der die das den dem des und in im ist ich sie wir mir zu von mit für auf ein eine einen einer nicht bitte wie was welche welcher welchen ob wird kann kannst es am an aus nach bei mein meine",
    ),
    traits("el", Lang::Ell, &[Script::Greek], &[], ""),
    traits(
        "en",
        Lang::Eng,
        LATIN,
        &[],
        "the a an of to in and is are for on with that this i me my we our you your it what which who how where when please can do at from by or be any all have has will would not no there so as if show list find get make tell give",
    ),
    traits(
        "es",
        Lang::Spa,
        LATIN,
        &[Lang::Por, Lang::Cat, Lang::Ita],
        "el la los las un una de del en y a que es por para con no se mi me qué cuál cuántos cuándo este esta lo al su si hay como favor puede puedes quiero",
    ),
    traits(
        "fi",
        Lang::Fin,
        LATIN,
        &[Lang::Est],
        "ja on ei en se että minulle minun kuinka mitä mikä missä milloin jos joka tai kaikki voitko voi haluan haluaisin kiitos mutta koska ole tämä tämän olen meidän siihen sen ovat kerro näytä etsi",
    ),
    traits(
        "fr",
        Lang::Fra,
        LATIN,
        &[Lang::Cat],
        "le la les l un une de des du d et à en est que qui pour dans sur avec je j ne pas ce cette ces mon ma mes quel quelle combien quand vous nous il s si au aux t moi plaît peux",
    ),
    traits(
        "hi",
        Lang::Hin,
        &[Script::Devanagari],
        &[Lang::Mar, Lang::Nep],
        "के की का में है हैं को से और कि पर यह क्या मुझे नहीं मैं हम आप इस किस",
    ),
    traits(
        "id",
        Lang::Ind,
        LATIN,
        &[Lang::Jav, Lang::Tgl],
        "yang di ke dari dan untuk dengan ini itu saya kami anda kamu tidak dapat bisa bisakah apa apakah berapa mana semua dalam pada tolong akan ada adalah kapan bagaimana",
    ),
    traits(
        "it",
        Lang::Ita,
        LATIN,
        &[Lang::Cat, Lang::Lat, Lang::Spa, Lang::Ron],
        "il lo la i gli le l un una di del della dello dei degli delle a al alla in nel nella e è che per con non si mi quale quanti quando questo questa su sul se da dal tra favore puoi posso sono",
    ),
    traits("ja", Lang::Jpn, CJK, &[], ""),
    traits("ko", Lang::Kor, &[Script::Hangul], &[], ""),
    traits(
        "nl",
        Lang::Nld,
        LATIN,
        &[Lang::Afr, Lang::Deu],
        "de het een en van in is op te dat die voor met ik je mij me u wij we niet kun kan wat welke hoe hoeveel wanneer deze dit er aan om of alle graag zijn wordt naar bij daar",
    ),
    traits(
        "pl",
        Lang::Pol,
        LATIN,
        &[Lang::Ces, Lang::Slk],
        "i w we na z ze do się nie to jest mi o za od po przez dla czy jak jaka jaki kiedy ile ilu które który która ten tę tym proszę moje mój mnie są mogę że ponieważ",
    ),
    traits(
        "pt",
        Lang::Por,
        LATIN,
        &[Lang::Spa, Lang::Cat],
        "o a os as um uma de do da dos das em no na nos nas e que é para por com não se me meu minha qual quantos quando este esta ao à como você pode está favor nossos",
    ),
    traits(
        "ru",
        Lang::Rus,
        &[Script::Cyrillic],
        &[Lang::Bul, Lang::Mkd, Lang::Srp, Lang::Bel],
        "в во на и с со не что я мы вы мне за по к у из от для это этот эту какая какой сколько когда пожалуйста как все есть ли до о мой моя",
    ),
    traits(
        "sv",
        Lang::Swe,
        LATIN,
        &[Lang::Nob, Lang::Dan],
        "och i att är en ett det den de till på för med av jag kan inte du mig hur vilken vilka som om har från vi vill ska vad den här tack åt alla när",
    ),
    traits("th", Lang::Tha, &[Script::Thai], &[], ""),
    traits(
        "tr",
        Lang::Tur,
        LATIN,
        &[Lang::Aze, Lang::Tuk, Lang::Uzb],
        "ve bir bu için ile mi mı mu mü ne nasıl hangi kaç lütfen bana benim da de en çok olan olarak var yok ama çünkü göster bul şu tüm bütün söyle",
    ),
    traits(
        "vi",
        Lang::Vie,
        LATIN,
        &[],
        "tôi và của là có không cho trong này các một những được với để bạn hãy tất cả nào bao nhiêu khi đến ở từ về thể",
    ),
    traits("zh", Lang::Cmn, CJK, &[], ""),
];

/// Whether `text` is in the language of this code. `values` belong to no language, nor does what stands in quotes.
///
/// # Errors
/// What it is instead, in words.
pub(crate) fn fits(text: &str, code: &str, values: &[&str]) -> Result<(), String> {
    let Some(wanted) = ALL.iter().find(|traits| traits.code == code) else { return Ok(()) };
    let rest = without(text, values);
    let letters = rest.chars().filter(|c| c.is_alphabetic()).count();
    if letters < FEW {
        return Ok(());
    }
    let name = super::kinds::name(code).unwrap_or(code);
    let script = detect_script(&rest);
    if let Some(other) = script.filter(|script| !wanted.scripts.contains(script)) {
        return Err(format!("the text is written in {} letters, and not in {name}", other.name()));
    }
    if let Some(other) = by_kana(&rest, letters, wanted.own) {
        return Err(format!("the text is {other}, and not {name}"));
    }
    let (all, own) = small_of(&rest, wanted.small);
    // Most texts end here: looking through all languages is dear.
    if own > 0 && own * OWN_ONE_IN >= all {
        return Ok(());
    }
    if let Some(other) = by_small(&rest, wanted, (all, own)) {
        return Err(format!("the text is {other}, and not {name}"));
    }
    if letters < SOME || (own > 0 && own * SMALL_ONE_IN >= all) {
        return Ok(());
    }
    match whatlang::detect(&rest).filter(|guess| guess.is_reliable() && guess.lang() != wanted.own) {
        Some(guess) if wanted.scripts != CJK && !wanted.near.contains(&guess.lang()) => {
            Err(format!("the text is {}, and not {name}", guess.lang().eng_name()))
        }
        _ => Ok(()),
    }
}

/// The text without values, without what stands in quotes, and without what is a value by its looks.
fn without(text: &str, values: &[&str]) -> String {
    let mut rest = text.to_owned();
    let own: Vec<String> = values::concrete(text).into_iter().map(str::to_owned).collect();
    let mut all: Vec<&str> = values.iter().copied().chain(own.iter().map(String::as_str)).collect();
    // The longest first: one value may be a part of another.
    all.sort_by_key(|value| std::cmp::Reverse(value.len()));
    all.into_iter().filter(|value| value.chars().count() > 1).for_each(|value| rest = rest.replace(value, " "));
    rest
}

/// Japanese and Chinese share letters: one has kana in every sentence, the other has none.
fn by_kana(text: &str, letters: usize, own: Lang) -> Option<&'static str> {
    let kana = text.chars().filter(|c| matches!(c, '\u{3040}'..='\u{30ff}')).count();
    match own {
        Lang::Jpn if kana == 0 && letters >= 2 * FEW => Some("Chinese"),
        Lang::Cmn if kana * 5 > letters => Some("Japanese"),
        _ => None,
    }
}

/// The language whose small words are many in a text that has few of its own.
fn by_small(text: &str, wanted: &Traits, (all, own): (usize, usize)) -> Option<&'static str> {
    let others = ALL.iter().filter(|other| other.own != wanted.own && !wanted.near.contains(&other.own));
    let counted = others.map(|other| (small_of(text, other.small).1, other));
    let (most, other) = counted.max_by_key(|(found, _)| *found)?;
    let many = most >= MANY_SMALL && most * MANY_ONE_IN >= all && own * 2 <= most;
    if many { super::kinds::name(other.code) } else { None }
}

/// The words of a text, and how many of them are small ones of a language.
fn small_of(text: &str, small: &str) -> (usize, usize) {
    let low = text.to_lowercase();
    let words = low.split(|c: char| !c.is_alphanumeric() && !is_mark(c)).filter(|word| !word.is_empty());
    words.fold((0, 0), |(all, found), word| (all + 1, found + usize::from(small.split(' ').any(|one| one == word))))
}

/// Vowel signs of Indian scripts are parts of words, and no letters.
fn is_mark(c: char) -> bool {
    matches!(c, '\u{0900}'..='\u{0dff}' | '\u{0300}'..='\u{036f}')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sentences() -> Vec<(&'static str, &'static str)> {
        include_str!("sentences.txt").lines().filter_map(|line| line.split_once('\t')).collect()
    }

    #[test]
    fn good_text_of_every_language_is_never_refused() {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut refused = Vec::new();
        for (code, text) in sentences() {
            *counts.entry(code).or_default() += 1;
            refused.extend(fits(text, code, &[]).err().map(|why| format!("{code}: {text}: {why}")));
        }
        let texts = sentences();
        // Longer texts hold more small words, of other languages too.
        for pair in texts.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let text = format!("{} {}", pair[0].1, pair[1].1);
            refused.extend(fits(&text, pair[0].0, &[]).err().map(|why| format!("{}: {text}: {why}", pair[0].0)));
        }
        assert!(refused.is_empty(), "{refused:#?}");
        assert!(counts.len() == ALL.len() && counts.values().all(|count| *count >= 10), "{counts:?}");
    }

    #[test]
    fn text_of_another_language_is_told() {
        // Long enough that something can be said: two sentences at once.
        let all = sentences();
        let pairs: Vec<(&str, String)> =
            all.windows(2).filter(|w| w[0].0 == w[1].0).map(|w| (w[0].0, format!("{} {}", w[0].1, w[1].1))).collect();
        let mut told: BTreeMap<(&str, &str), [usize; 2]> = BTreeMap::new();
        for (code, text) in &pairs {
            for wanted in &ALL {
                let own = ALL.iter().find(|traits| traits.code == *code).unwrap().own;
                if wanted.code == *code || wanted.near.contains(&own) {
                    continue;
                }
                let counts = told.entry((code, wanted.code)).or_default();
                counts[usize::from(fits(text, wanted.code, &[]).is_err())] += 1;
            }
        }
        let [passed, refused] = told.values().fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
        let slips: Vec<_> = told.iter().filter(|(_, counts)| counts[0] > 0).collect();
        assert!(refused * 100 >= (passed + refused) * 99, "{refused} of {}: {slips:?}", passed + refused);
    }

    #[test]
    fn values_and_quotes_belong_to_no_language() {
        assert_eq!(fits("Wie wird das Wetter in 北京市朝阳区 morgen?", "de", &["北京市朝阳区"]), Ok(()));
        assert_eq!(fits("Translate \"今天天气怎么样，我想知道\" please.", "en", &[]), Ok(()));
        assert_eq!(fits("4821.", "zh", &[]), Ok(()));
        assert_eq!(fits("notes/april.md", "ar", &[]), Ok(()));
        assert!(fits("请告诉我天气怎么样？", "en", &[]).unwrap_err().contains("not in English"));
        assert!(fits("Please show me the weather there.", "zh", &[]).is_err());
        assert!(fits("Please show me the weather in the town.", "de", &[]).unwrap_err().contains("not German"));
        assert!(fits("我想知道火车什么时候到站。", "ja", &[]).unwrap_err().contains("Chinese"));
        assert!(fits("電車が駅に着く時間を知りたいです。", "zh", &[]).unwrap_err().contains("Japanese"));
        assert_eq!(fits("whatever", "xx", &[]), Ok(()));
    }
}
