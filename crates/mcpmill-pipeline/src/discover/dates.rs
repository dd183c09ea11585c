//! Days of the calendar, for searches that are split by date.

/// Days since 1970-01-01 of the date that `text` begins with (`2026-01-31…`).
pub(super) fn day(text: &str) -> Option<i64> {
    let mut parts = text.get(..10)?.split('-');
    let mut next = || parts.next()?.parse::<i64>().ok();
    let (year, month, day) = (next()?, next()?, next()?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March, so that the leap day is their last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (y / 400, y % 400);
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * m + 2) / 5 + day - 1 - 719_468)
}

/// The date of a day, as `2026-01-31`.
pub(super) fn date(days: i64) -> String {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let m = (5 * of_year + 2) / 153;
    let month = if m < 10 { m + 3 } else { m - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{:02}", of_year - (153 * m + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_inverse() {
        assert_eq!((day("1970-01-01"), day("2024-02-29T10:00:00Z"), day("2024-2-29")), (Some(0), Some(19_782), None));
        assert!((0..40_000).all(|d| day(&date(d)) == Some(d)));
        assert_eq!(day("2026-13-01"), None);
    }
}
