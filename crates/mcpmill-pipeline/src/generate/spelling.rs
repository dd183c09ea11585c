//! Files as people name them, by the end of their path, and spelt out.

use std::ops::Range;

use super::values::Named;

/// `request` with files spelt out: where it names a file by the end of its path, and that once, the whole path takes
/// its place. A person names `sales.csv`; which one it is was decided.
pub(super) fn spelt_out(request: &str, missing: &[Named]) -> String {
    missing.iter().fold(request.to_owned(), |request, value| match shortened(&request, &value.text) {
        Some(place) => format!("{}{}{}", &request[..place.start], value.text, &request[place.end..]),
        None => request,
    })
}

/// Where `request` names the file at `path` by no more than an end of it.
fn shortened(request: &str, path: &str) -> Option<Range<usize>> {
    let ends = path.match_indices('/').map(|(at, _)| &path[at + 1..]);
    let named = ends.filter(|end| end.rsplit('/').next().is_some_and(|file| file.contains('.') && file.len() > 2));
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "_-./\\~".contains(c));
    for end in named {
        let mut places = request.match_indices(end).map(|(at, _)| at..at + end.len()).filter(|place| {
            let mut after = request[place.end..].chars();
            let next = after.next();
            // `sales.csv.` ends a sentence.
            let goes_on = if next == Some('.') { joins(after.next()) } else { joins(next) };
            !joins(request[..place.start].chars().next_back()) && !goes_on
        });
        if let Some(place) = places.next() {
            return places.next().is_none().then_some(place);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_spelt_out_where_they_are_named_once() {
        let path = |text: &str| vec![Named { name: "path".into(), text: text.into(), words: Vec::new() }];
        let csv = path("/home/user/data/sales.csv");
        for (request, spelt) in [
            ("Show the head of 'sales.csv'.", "Show the head of '/home/user/data/sales.csv'."),
            ("Show data/sales.csv.", "Show /home/user/data/sales.csv."),
            ("Show sales.csv and the other sales.csv.", "Show sales.csv and the other sales.csv."),
            ("Show mysales.csv, sales.csv.bak and /tmp/sales.csv.", "Show mysales.csv, sales.csv.bak and /tmp/sales.csv."),
            ("Show the sales.", "Show the sales."),
        ] {
            assert_eq!(spelt_out(request, &csv), spelt);
        }
        assert_eq!(spelt_out("I work on the data.", &path("/home/user/data")), "I work on the data.");
    }
}
