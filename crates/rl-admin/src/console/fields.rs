use axum::http::Uri;

/// The fields of a form or of a query.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Parses the query of a URI.
    pub(super) fn of_query(uri: &Uri) -> Self {
        Self::parse(uri.query().unwrap_or_default().as_bytes())
    }

    /// Parses a text such as `a=1&b=2`. Any other text yields no fields.
    pub(super) fn parse(text: &[u8]) -> Self {
        Self(serde_urlencoded::from_bytes(text).unwrap_or_default())
    }

    /// Returns the trimmed value of a field, or an empty text if the field is missing.
    pub(super) fn get(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// Returns the untrimmed value of a field, or an empty text if the field is missing.
    pub(super) fn raw(&self, name: &str) -> &str {
        let field = self.0.iter().find(|(field, _)| field == name);
        field.map_or("", |(_, value)| value)
    }

    /// Returns every untrimmed value of a field.
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        let fields = self.0.iter().filter(|(field, _)| field == name);
        fields.map(|(_, value)| &**value).collect()
    }

    /// Returns the trimmed value of a field, if it is not empty.
    pub(super) fn non_empty(&self, name: &str) -> Option<&str> {
        Some(self.get(name)).filter(|value| !value.is_empty())
    }

    /// Returns these fields with another value for `name`.
    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.retain(|(field, _)| field != name);
        self.0.push((name.to_owned(), value.into()));
        self
    }
}

/// Returns a link to a path with a query.
pub(super) fn link(path: &str, fields: &[(&str, &str)]) -> String {
    let query = serde_urlencoded::to_string(fields).unwrap_or_default();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_forms_write_them() {
        let fields = Fields::parse(b"a=+1%26+&b=&a=2&%C3%A4=%3Cb%3E");
        assert_eq!((fields.get("a"), fields.raw("a")), ("1&", " 1& "));
        assert_eq!((fields.non_empty("b"), fields.non_empty("c")), (None, None));
        assert_eq!(fields.get("ä"), "<b>");
        assert_eq!(fields.with("a", "3").get("a"), "3");
        assert_eq!(Fields::parse(&[0xff, b'=', 0xfe]).get("a"), "");
    }

    #[test]
    fn links_hold_any_text() {
        let link = link("/console/consumer", &[("id", "a&b=\"<ü")]);
        assert_eq!(link, "/console/consumer?id=a%26b%3D%22%3C%C3%BC");
        assert_eq!(Fields::parse(link.split_once('?').unwrap().1.as_bytes()).get("id"), "a&b=\"<ü");
    }
}
