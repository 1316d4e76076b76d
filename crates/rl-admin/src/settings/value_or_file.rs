use super::InvalidSetting;

/// Returns the value of the first variable, or the content of the file that the second one names,
/// and the name of that variable. The third text names both.
pub(super) fn value_or_file(
    read: impl Fn(&'static str) -> Option<String>,
    [name, file, both]: [&'static str; 3],
) -> Result<Option<(&'static str, String)>, InvalidSetting> {
    match (read(name), read(file)) {
        (Some(value), None) => Ok(Some((name, value))),
        (None, Some(path)) => {
            let content = std::fs::read_to_string(&path);
            let content = content.map_err(|error| format!("{path}: {error}"));
            Ok(Some((file, content.map_err(|reason| InvalidSetting::new(file, reason))?)))
        }
        (Some(_), Some(_)) => Err(InvalidSetting::new(both, "expected one of the two")),
        (None, None) => Ok(None),
    }
}
