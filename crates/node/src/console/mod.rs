//! The console: one page that shows the cluster (docs/console.md).  It is made of the files beside this one, as they
//! are, and asks `GET /cluster` like anybody else.

use crate::access::{Access, Door};
use crate::tls::sha256;
use axum::extract::{Path, RawQuery};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::Router;
use std::sync::Arc;

const HTML: &str = "text/html; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const PAGE: &str = include_str!("index.html");
const SIGN_IN: &str = include_str!("sign-in.html");
const FILES: [(&str, &str, &str); 7] = [
    ("console.css", "text/css; charset=utf-8", include_str!("console.css")),
    ("icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("console.js", JS, include_str!("console.js")),
    ("draw.js", JS, include_str!("draw.js")),
    ("layout.js", JS, include_str!("layout.js")),
    ("map.js", JS, include_str!("map.js")),
    ("model.js", JS, include_str!("model.js")),
];

pub fn routes<S: Clone + Send + Sync + 'static>(door: Arc<Door>) -> Router<S> {
    Router::new()
        .route("/", get(page))
        .route("/console", get(to_page))
        .route("/console/", get(to_page))
        .route("/console/sign-in", post(move |body| sign_in(door, body)))
        .route("/console/{file}", get(file))
}

/// Whether this is the page itself, where a person is asked for the token.
pub fn is_page(path: &str) -> bool {
    matches!(path, "/" | "/console" | "/console/")
}

/// What signing in takes.
pub fn is_for_all(path: &str) -> bool {
    matches!(path, "/console/sign-in" | "/console/console.css" | "/console/icon.svg")
}

async fn page(RawQuery(query): RawQuery, headers: HeaderMap) -> Response {
    // Somebody who is signed in follows a link with the token: it should not stay in the address.
    match query {
        Some(_) => to_page().await,
        None => kept(&headers, HTML, PAGE),
    }
}

async fn to_page() -> Response {
    (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response()
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().find(|(file, ..)| *file == name) {
        Some((_, kind, text)) => kept(&headers, kind, text),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A browser may keep it, and has to ask each time whether it is still the same.
fn kept(headers: &HeaderMap, kind: &'static str, text: &'static str) -> Response {
    let digest: String = sha256(text.as_bytes())[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{digest}\"");
    let common = [(CACHE_CONTROL, "no-cache".to_string()), (ETAG, tag.clone())];
    if headers.get_all(IF_NONE_MATCH).iter().any(|known| known.to_str().is_ok_and(|known| known.contains(&tag))) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    (common, [(CONTENT_TYPE, kind)], text).into_response()
}

/// The answer to somebody who asks for the page and may not see it: a cookie for the token in the query, or a form.
///
/// With the token comes a page that leads to the console, and no redirect: a browser that follows a link from another
/// site sends no `SameSite=Strict` cookie along with a redirect.
pub fn signed_in(access: &Access, query: Option<&str>) -> Response {
    let token = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("token=")));
    match token.and_then(|token| access.cookie_for(token)) {
        Some(cookie) => {
            let page = "<!doctype html><html lang=\"en\"><title>Onetrip</title><meta http-equiv=\"refresh\" content=\"0; url=/\">\
                        <p><a href=\"/\">To the console</a></p></html>";
            ([(SET_COOKIE, cookie)], Html(page)).into_response()
        }
        None => (StatusCode::UNAUTHORIZED, Html(SIGN_IN)).into_response(),
    }
}

/// `token=...`, as the form sends it.
async fn sign_in(door: Arc<Door>, body: String) -> Response {
    // A form writes white space that was pasted along as `+` or `%0A`.
    let token = body.strip_prefix("token=").unwrap_or_default();
    let token = token.trim_matches('+').trim_end_matches("%0A").trim_end_matches("%0D");
    match door.access().cookie_for(token) {
        Some(cookie) => (StatusCode::SEE_OTHER, [(SET_COOKIE, cookie), (LOCATION, "/".into())]).into_response(),
        None => (StatusCode::UNAUTHORIZED, Html(SIGN_IN)).into_response(),
    }
}
