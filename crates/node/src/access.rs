//! Who may ask the HTTP port.
//!
//! On loopback that is everyone on the machine, but no page from elsewhere that runs in a browser there: the owner of a
//! name can let it resolve to 127.0.0.1 (DNS rebinding), so a request has to be for localhost or an address.
//! Elsewhere, and on loopback if the node's folder contains a token, it is whoever shows that token, as
//! `Authorization: Bearer` or as the cookie that a browser was given for it.
//!
//! Invariants:
//! - Whoever may not ask learns from the paths for load balancers whether all is well, and nothing else.
//! - The token is compared in constant time, and the cookie does not tell it.

use crate::config::NodeConfig;
use crate::console;
use crate::error::{Error, Result};
use crate::secret;
use crate::tls::sha256;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, REFERRER_POLICY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ring::hmac;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, RwLock};

const TOKEN_LEN_MIN: usize = 32;
const TOKEN_LEN_MAX: usize = 256;
/// Answered to everyone: for load balancers, and what signing in takes.
const FOR_ALL: [&str; 4] = ["/health", "/writable", "/readable", "/leader"];

pub enum Access {
    Loopback,
    Token(Box<Token>),
}

/// What applies now, for all who ask.
pub struct Door(RwLock<Arc<Access>>);

impl Door {
    pub fn new(access: Access) -> Arc<Door> {
        Arc::new(Door(RwLock::new(Arc::new(access))))
    }

    pub fn access(&self) -> Arc<Access> {
        self.0.read().expect("no code that holds this lock panics").clone()
    }

    /// From the next request on.
    pub fn set(&self, access: Access) {
        *self.0.write().expect("no code that holds this lock panics") = Arc::new(access);
    }
}

pub struct Token {
    /// Drawn at each start; what is shown is compared through it.
    key: hmac::Key,
    token: hmac::Tag,
    cookie: hmac::Tag,
    cookie_name: String,
    cookie_value: String,
    /// The cookie is sent over TLS only.
    secure: bool,
}

impl Access {
    /// Reads the node's token; makes it if there is none and others can reach the port.
    pub fn of(config: &NodeConfig) -> Result<Access> {
        let file = config.http_token_file();
        let is_there = file.try_exists().map_err(Error::disk(&file, "looking for the token"))?;
        if config.http.ip().is_loopback() && !is_there {
            return Ok(Access::Loopback);
        }
        let token = load_or_draw(&file)?;
        tracing::info!(http = %config.http, "the HTTP port asks for the token in {}", file.display());
        if !config.http.ip().is_loopback() && !config.http_tls {
            tracing::warn!(
                http = %config.http,
                "the HTTP port speaks no TLS, so its token can be read on its way: see `http_tls` in docs/settings.md"
            );
        }
        Ok(Access::Token(Box::new(Token::new(&token, config)?)))
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        match self {
            // Without Host it is no browser.
            Access::Loopback => headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_no_name)),
            Access::Token(token) => token.is_shown(headers),
        }
    }

    /// The cookie for a browser that shows this token; `None`: it is not the token, or there is none.
    pub fn cookie_for(&self, token: &str) -> Option<String> {
        match self {
            Access::Token(own) if own.is(token, &own.token) => Some(own.set_cookie()),
            _ => None,
        }
    }
}

impl Token {
    fn new(token: &str, config: &NodeConfig) -> Result<Token> {
        Token::of_port(token, config.http.port(), config.http_tls)
    }

    fn of_port(token: &str, port: u16, secure: bool) -> Result<Token> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret::draw()?);
        let cookie_value = hex(&sha256(format!("cookie of the console\n{token}").as_bytes()));
        Ok(Token {
            token: hmac::sign(&key, token.as_bytes()),
            cookie: hmac::sign(&key, cookie_value.as_bytes()),
            key,
            // Browsers send a cookie to all ports of an address: each node has a name of its own.
            cookie_name: format!("onetrip-{port}"),
            cookie_value,
            secure,
        })
    }

    fn is(&self, shown: &str, expected: &hmac::Tag) -> bool {
        hmac::verify(&self.key, shown.as_bytes(), expected.as_ref()).is_ok()
    }

    fn is_shown(&self, headers: &HeaderMap) -> bool {
        let bearer = |value: &str| {
            let (scheme, shown) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| shown.trim().to_string())
        };
        let bearer = headers.get(AUTHORIZATION).and_then(|value| bearer(value.to_str().ok()?));
        if let Some(shown) = bearer {
            return self.is(&shown, &self.token);
        }
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookies = cookies.flat_map(|value| value.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        let mut own = cookies.filter(|(name, _)| *name == self.cookie_name);
        own.any(|(_, value)| self.is(value, &self.cookie))
    }

    fn set_cookie(&self) -> String {
        let secure = if self.secure { "; Secure" } else { "" };
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict{secure}", self.cookie_name, self.cookie_value)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn load_or_draw(file: &Path) -> Result<String> {
    let wrong = |why: String| Error::Config { file: file.to_owned(), why };
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let token = hex(&secret::draw()?);
            crate::disk::write_private(file, format!("{token}\n").as_bytes())?;
            return Ok(token);
        }
        Err(e) => return Err(wrong(format!("cannot be read: {e}"))),
    };
    let mode = std::fs::metadata(file).map_err(|e| wrong(format!("cannot be read: {e}")))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(wrong(format!(
            "others can read or change the token of the HTTP port (mode {:03o}): make it `chmod 600`, and draw a new one by removing \
             the file if somebody may have seen it",
            mode & 0o777
        )));
    }
    let token = text.trim();
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !(TOKEN_LEN_MIN..=TOKEN_LEN_MAX).contains(&token.len()) || !token.chars().all(fits) {
        return Err(wrong(format!(
            "a token of the HTTP port has {TOKEN_LEN_MIN} to {TOKEN_LEN_MAX} letters, digits, `-`, `_` and `.`; remove the file, and the \
             node draws one"
        )));
    }
    Ok(token.to_string())
}

/// Whether a Host header is `localhost` or an address, which nobody can let resolve to something else.
fn is_no_name(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or((rest, "?")),
        None => host.find(':').map_or((host, ""), |colon| host.split_at(colon)),
    };
    let port_fits = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    port_fits && (name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok())
}

/// Stands before all routes.
pub async fn guard(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let access = door.access();
    let path = request.uri().path();
    let admitted = access.admits(request.headers());
    let for_load_balancers = FOR_ALL.contains(&path);
    // Signing in, and what the page for it looks like.
    let for_all = for_load_balancers || matches!(&*access, Access::Token(_)) && console::is_for_all(path);
    let mut response = match admitted || for_all {
        true => next.run(request).await,
        false => refused(&access, path, request.uri().query()),
    };
    if !admitted && for_load_balancers {
        *response.body_mut() = Body::empty();
        response.headers_mut().remove(axum::http::header::CONTENT_LENGTH);
        response.headers_mut().remove(axum::http::header::CONTENT_TYPE);
    }
    harden(response.headers_mut());
    response
}

fn refused(access: &Access, path: &str, query: Option<&str>) -> Response {
    match access {
        Access::Loopback => {
            let why = "ask for localhost or an address: a name could lead here from any web page\n";
            (StatusCode::FORBIDDEN, why).into_response()
        }
        Access::Token(_) if console::is_page(path) => console::signed_in(access, query),
        Access::Token(_) => {
            let why = "show the token that is in http.token in the node's folder: Authorization: Bearer TOKEN\n";
            let bearer = [(WWW_AUTHENTICATE, "Bearer realm=\"onetrip\"")];
            (StatusCode::UNAUTHORIZED, bearer, why).into_response()
        }
    }
}

/// No browser runs, frames or reads what is answered here on behalf of another page, or keeps it.
fn harden(headers: &mut HeaderMap) {
    const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                       form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, CSP),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use axum::Router;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn headers(all: &[(HeaderName, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn on_loopback_no_name_but_localhost_is_answered() {
        for host in
            ["localhost", "LocalHost:7101", "127.0.0.1:7101", "127.0.0.2", "[::1]:7101", "[::1]", "10.0.1.10:80"]
        {
            assert!(Access::Loopback.admits(&headers(&[(HOST, host)])), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7101",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "node",
            "",
            "localhost:",
            "localhost:x",
            "localhost:7101:1",
            "[::1",
            "[::1]evil.example",
            "[evil.example]",
            "evil.example#[::1]",
            "127.0.0.1@evil.example",
            "2130706433",
            "::1",
        ] {
            assert!(!Access::Loopback.admits(&headers(&[(HOST, host)])), "{host}");
        }
        assert!(Access::Loopback.admits(&HeaderMap::new()), "HTTP/1.0, as load balancers speak it");
        assert!(!Access::Loopback.admits(&headers(&[(HOST, "localhost"), (HOST, "evil.example")])));
    }

    #[test]
    fn elsewhere_only_the_token_or_its_cookie_is_answered() {
        let token = Token::of_port(TOKEN, 7101, false).unwrap();
        let cookie = token.set_cookie();
        let (pair, rules) = cookie.split_once("; ").unwrap();
        assert_eq!(rules, "Path=/; HttpOnly; SameSite=Strict");
        assert!(!cookie.contains(TOKEN), "the cookie does not tell the token");
        let value = pair.strip_prefix("onetrip-7101=").unwrap();
        let secure = Token::of_port(TOKEN, 7101, true).unwrap().set_cookie();
        assert_eq!(secure, format!("{cookie}; Secure"));
        let access = Access::Token(Box::new(token));
        let bearer = |token: &str| headers(&[(AUTHORIZATION, &format!("Bearer {token}"))]);
        let with = |cookie: &str| headers(&[(COOKIE, cookie)]);
        assert!(access.admits(&bearer(TOKEN)));
        assert!(access.admits(&headers(&[(AUTHORIZATION, &format!("bearer {TOKEN}"))])));
        assert!(access.admits(&with(pair)) && access.admits(&with(&format!("a=b; onetrip-7101=x; {pair}"))));
        for wrong in [HeaderMap::new(), bearer(""), bearer(&TOKEN[1..]), bearer(&format!("{TOKEN}0")), bearer(value)] {
            assert!(!access.admits(&wrong), "{wrong:?}");
        }
        for wrong in
            [&format!("onetrip-7101={TOKEN}"), &format!("onetrip-7102={value}"), "onetrip-7101=", "onetrip-7101"]
        {
            assert!(!access.admits(&with(wrong)), "{wrong}");
        }
        // A wrong token is not forgiven for a right cookie.
        assert!(!access.admits(&headers(&[(AUTHORIZATION, "Bearer x"), (COOKIE, pair)])));
        assert!(access.cookie_for(TOKEN).is_some_and(|c| c == cookie) && access.cookie_for(value).is_none());
        assert_eq!(Access::Loopback.cookie_for(TOKEN), None);
    }

    /// The routes as `http` has them, with answers of their own.
    async fn serve(access: Access) -> SocketAddr {
        let access = Door::new(access);
        let routes = Router::new()
            .route("/cluster", get(|| async { "secret" }))
            .route("/health", get(|| async { (StatusCode::SERVICE_UNAVAILABLE, "secret") }))
            .merge(console::routes(access.clone()))
            .layer(from_fn_with_state(access, guard));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        address
    }

    /// Status, head and body.
    async fn ask(address: SocketAddr, line: &str, headers: &str, body: &str) -> (u16, String, String) {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let length = body.len();
        let request =
            format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_lowercase(), body.to_string())
    }

    #[tokio::test]
    async fn without_the_token_no_path_tells_more_than_whether_all_is_well() {
        let address = serve(Access::Token(Box::new(Token::of_port(TOKEN, 7101, false).unwrap()))).await;
        let here = "Host: 10.0.1.10:7101\r\n";
        for path in
            ["/cluster", "/console/console.js", "/console/model.js", "/nothing", "/cluster?token=x", "//cluster"]
        {
            let (status, head, body) = ask(address, &format!("GET {path}"), here, "").await;
            assert_eq!(status, 401, "{path}");
            assert!(head.contains("www-authenticate: bearer") && !body.contains("secret"), "{path}: {body}");
        }
        let (status, head, body) = ask(address, "GET /health", here, "").await;
        assert!(status == 503 && body.is_empty() && !head.contains("secret"), "{head}: {body}");
        for line in ["GET /", "GET /?token=wrong", "GET /console", "POST /console/sign-in"] {
            let (status, head, body) = ask(address, line, here, "token=wrong").await;
            assert!(status == 401 && body.contains("<form") && !head.contains("set-cookie"), "{line}: {head}");
        }
        let with_token = format!("{here}Authorization: Bearer {TOKEN}\r\n");
        assert_eq!(ask(address, "GET /cluster", &with_token, "").await.2, "secret");
        assert_eq!(ask(address, "GET /health", &with_token, "").await.2, "secret");
    }

    #[tokio::test]
    async fn a_browser_gets_a_cookie_for_the_token() {
        let address = serve(Access::Token(Box::new(Token::of_port(TOKEN, 7101, false).unwrap()))).await;
        let by_link = ask(address, &format!("GET /?token={TOKEN}"), "", "").await;
        let by_form = ask(address, "POST /console/sign-in", "", &format!("token={TOKEN}")).await;
        let by_pasted = ask(address, "POST /console/sign-in", "", &format!("token=+{TOKEN}%0D%0A+")).await;
        for (expected, (status, head, body)) in [(200, by_link), (303, by_form), (303, by_pasted)] {
            assert_eq!(status, expected, "{head}");
            assert!(!head.contains(TOKEN) && !body.contains(TOKEN), "the address is not kept: {head}");
            let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
            let cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
            assert_eq!(ask(address, "GET /cluster", &cookie, "").await.2, "secret");
            assert_eq!(ask(address, "GET /?token=old", &cookie, "").await.0, 303, "away from the token");
        }
    }

    #[tokio::test]
    async fn on_loopback_the_console_is_open_and_closed_to_names() {
        let address = serve(Access::Loopback).await;
        let ask_as = |line: &'static str, host: &'static str| async move {
            ask(address, line, &format!("Host: {host}\r\n"), "").await
        };
        let (status, head, body) = ask_as("GET /", "localhost:7101").await;
        assert!(status == 200 && body.starts_with("<!doctype html>"), "{head}");
        for rule in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "nosniff",
            "same-origin",
            "no-referrer",
        ] {
            assert!(head.contains(rule), "{rule}: {head}");
        }
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
        let again = ask(address, "GET /", &format!("If-None-Match: {tag}\r\n"), "").await;
        assert!(again.0 == 304 && again.2.is_empty());
        let (_, head, body) = ask_as("GET /cluster", "127.0.0.1").await;
        assert!(body == "secret" && head.contains("cache-control: no-store"), "{head}");
        assert_eq!(ask_as("GET /console", "localhost").await.0, 303);
        assert_eq!(ask_as("GET /console/mod.rs", "localhost").await.0, 404);
        for line in ["GET /", "GET /cluster", "GET /console/console.js", "POST /console/sign-in"] {
            let (status, _, body) = ask_as(line, "evil.example:7101").await;
            assert!(status == 403 && !body.contains("secret"), "{line}: {body}");
        }
        assert_eq!(ask_as("GET /health", "evil.example").await.2, "");
    }

    /// Each file that a page names is there; and nothing in a page runs by itself or comes from elsewhere.
    #[tokio::test]
    async fn pages_need_nothing_from_elsewhere() {
        let address = serve(Access::Loopback).await;
        let mut to_read = vec!["/".to_string()];
        let mut read = std::collections::BTreeSet::new();
        while let Some(path) = to_read.pop() {
            if !read.insert(path.clone()) {
                continue;
            }
            let (status, _, text) = ask(address, &format!("GET {path}"), "", "").await;
            assert_eq!(status, 200, "{path}");
            assert!(
                !text.contains("://") || path.ends_with(".svg") || path.ends_with("draw.js"),
                "{path} names another site"
            );
            for bad in
                [" onclick", " onload", "style=", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("]
            {
                assert!(!text.contains(bad), "{path} contains {bad}");
            }
            let quoted = text.split(['"', '\'']).filter(|part| part.starts_with("/console/") || part.starts_with("./"));
            to_read.extend(quoted.map(|part| part.replacen("./", "/console/", 1)).filter(|path| path != "/console/"));
        }
        assert!(read.contains("/console/layout.js") && read.contains("/console/console.css"), "{read:?}");
    }

    #[test]
    fn a_token_is_drawn_once_and_one_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("http.token");
        let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        let drawn = load_or_draw(&file).unwrap();
        assert_eq!((drawn.len(), mode()), (64, 0o600));
        assert_eq!(load_or_draw(&file).unwrap(), drawn);
        let refused = || load_or_draw(&file).unwrap_err().to_string();
        for open in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(open)).unwrap();
            assert!(refused().contains("chmod 600"), "{open:o}: {}", refused());
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        for bad in ["", "short\n", &format!("{TOKEN}; x"), &format!("{TOKEN}\n{TOKEN}"), &"x".repeat(TOKEN_LEN_MAX + 1)]
        {
            std::fs::write(&file, bad).unwrap();
            assert!(refused().contains("32 to 256"), "{bad}: {}", refused());
        }
        std::fs::write(&file, format!("{TOKEN}\r\n")).unwrap();
        assert_eq!(load_or_draw(&file).unwrap(), TOKEN);
    }
}
