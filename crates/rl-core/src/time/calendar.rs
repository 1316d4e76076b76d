//! Calendar months in UTC.

const DAY: u64 = 24 * 3_600 * 1_000_000;

/// Returns the start and the length of the calendar month that contains `time`, in µs.
pub(crate) const fn calendar_month(time: u64) -> (u64, u64) {
    let (first, length) = month_of(time / DAY);
    (first * DAY, length * DAY)
}

/// Returns the first day and the length of the calendar month that contains `day`, in days since
/// 1970-01-01.
///
/// Eras of 400 years are counted from 0000-03-01, so that a leap day is the last day of its year.
/// The lengths of the months before it then follow one formula: 153 days in every five months.
const fn month_of(day: u64) -> (u64, u64) {
    const DAYS_TO_EPOCH: u64 = 719_468;
    const ERA: u64 = 146_097;
    const FEBRUARY: u64 = 11;
    const fn days_before(month: u64) -> u64 {
        (153 * month + 2) / 5
    }

    let (era, day_of_era) = ((day + DAYS_TO_EPOCH) / ERA, (day + DAYS_TO_EPOCH) % ERA);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / (ERA - 1)) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // 0 is March
    let first = day - (day_of_year - days_before(month));
    let length = if month == FEBRUARY {
        // A year that is counted from March ends with the February of the next calendar year.
        let year = era * 400 + year_of_era + 1;
        let is_leap =
            year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
        28 + is_leap as u64
    } else {
        days_before(month + 1) - days_before(month)
    };
    (first, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calendar_is_right_on_every_day_until_2400() {
        let mut first = 0;
        for year in 1970..2400 {
            let is_leap = year % 400 == 0 || year % 4 == 0 && year % 100 != 0;
            let february = if is_leap { 29 } else { 28 };
            for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
                for day in first..first + length {
                    assert_eq!(month_of(day), (first, length), "day {day} of {year}");
                }
                first += length;
            }
        }
    }
}
