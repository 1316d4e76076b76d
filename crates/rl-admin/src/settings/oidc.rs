use super::InvalidSetting;
use super::value_or_file::value_or_file;
use crate::oidc::{InvalidOidc, Oidc, OidcPart};

/// Reads the settings of the provider of OpenID Connect; `None` if there is no provider.
pub(super) fn read(
    read: impl Fn(&'static str) -> Option<String>,
) -> Result<Option<Oidc>, InvalidSetting> {
    const ISSUER: &str = "RL_ADMIN_OIDC_ISSUER";
    const CLIENT_ID: &str = "RL_ADMIN_OIDC_CLIENT_ID";
    const CLAIM: &str = "RL_ADMIN_OIDC_CLAIM";
    const NAME: &str = "RL_ADMIN_OIDC_NAME";
    const SECRET: [&str; 3] = [
        "RL_ADMIN_OIDC_CLIENT_SECRET",
        "RL_ADMIN_OIDC_CLIENT_SECRET_FILE",
        "RL_ADMIN_OIDC_CLIENT_SECRET and RL_ADMIN_OIDC_CLIENT_SECRET_FILE",
    ];
    const ROLES: [&str; 3] = [
        "RL_ADMIN_OIDC_ROLES",
        "RL_ADMIN_OIDC_ROLES_FILE",
        "RL_ADMIN_OIDC_ROLES and RL_ADMIN_OIDC_ROLES_FILE",
    ];
    let secret = value_or_file(&read, SECRET)?;
    let roles = value_or_file(&read, ROLES)?;
    let Some(issuer) = read(ISSUER) else {
        let others = [CLIENT_ID, CLAIM, NAME].into_iter().filter(|name| read(name).is_some());
        let others = others.chain(secret.map(|(name, _)| name)).chain(roles.map(|(name, _)| name));
        return match others.into_iter().next() {
            Some(_) => Err(InvalidSetting::new(ISSUER, "expected the issuer of the provider, too")),
            None => Ok(None),
        };
    };
    let client_id = read(CLIENT_ID).unwrap_or_default();
    let (secret_name, secret) = secret.unwrap_or((SECRET[0], String::new()));
    let (roles_name, roles) = roles.unwrap_or((ROLES[0], String::new()));
    let oidc = Oidc::new(&issuer, &client_id, secret.trim_end_matches(['\r', '\n']), &roles);
    let oidc = oidc.map_err(|error: InvalidOidc| {
        let name = match error.part() {
            OidcPart::Issuer => ISSUER,
            OidcPart::ClientId => CLIENT_ID,
            OidcPart::ClientSecret => secret_name,
            OidcPart::Roles => roles_name,
        };
        InvalidSetting::new(name, error.to_string())
    })?;
    let oidc = read(CLAIM).iter().fold(oidc, |oidc, claim| oidc.claim(claim));
    Ok(Some(read(NAME).iter().fold(oidc, |oidc, name| oidc.label(name))))
}
