#include "app/http_mapping.h"

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "api/problem.h"
#include "app/gzip.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::app {
namespace {

// A repeated header counts as missing, because it is ambiguous.
std::string only_header(const net::HttpHeaders& headers, std::string_view name) {
  std::string value;
  for (const net::HttpHeader& header : headers) {
    if (!net::equal_ignoring_case(header.name, name)) continue;
    if (!value.empty()) return {};
    value = header.value;
  }
  return value;
}

// Repeated headers form one list.
std::string listed_header(const net::HttpHeaders& headers, std::string_view name) {
  std::string list;
  for (const net::HttpHeader& header : headers) {
    if (net::equal_ignoring_case(header.name, name))
      list += (list.empty() ? "" : ",") + header.value;
  }
  return list;
}

mcp::RequestHeaders mcp_headers(const net::HttpHeaders& headers) {
  mcp::RequestHeaders out;
  const auto take = [&](std::string_view name, std::optional<std::string>& into) {
    for (const net::HttpHeader& header : headers) {
      if (!net::equal_ignoring_case(header.name, name)) continue;
      out.is_duplicated = out.is_duplicated || into.has_value();
      into = header.value;
    }
  };
  take("mcp-protocol-version", out.version);
  take("mcp-method", out.method);
  take("mcp-name", out.name);
  return out;
}

// One value per line, as JSON, so that a terminal ends with a line break.
api::RenderedBody render_body(const Value& body, bool may_compress) {
  api::RenderedBody rendered{canonical(body) + "\n"};
  if (may_compress && rendered.bytes.size() > kGzipMin) {
    if (auto compressed = gzip(rendered.bytes)) return {*std::move(compressed), true};
  }
  rendered.bytes.shrink_to_fit();  // a string that grew may have twice the capacity
  return rendered;
}

}  // namespace

std::string method_of(const net::HttpRequest& request) {
  return request.method == "HEAD" ? "GET" : request.method;
}

bool is_mcp(const net::HttpRequest& request) {
  return !request.path.empty() && request.path[0] == "mcp" && request.method == "POST" &&
         (request.path.size() == 1 || (request.path.size() == 2 && request.path[1].empty()));
}

api::ApiRequest to_api_request(net::HttpRequest&& in, const api::Principal& principal, bool local) {
  api::ApiRequest out;
  out.local = local;
  out.method = method_of(in);
  if (const auto key = net::find_header(in.headers, "idempotency-key")) {
    out.idempotency_key = *key;
  }
  if (is_mcp(in)) out.mcp_headers = mcp_headers(in.headers);
  out.accepts_gzip =
      out.method == "GET" && accepts_gzip(listed_header(in.headers, "accept-encoding"));
  out.render = [compresses = out.accepts_gzip](const Value& body) {
    return render_body(body, compresses);
  };
  if (out.method == "GET") out.if_none_match = listed_header(in.headers, "if-none-match");
  const auto by = net::find_header(in.headers, "x-aetheris-by");
  out.by = !principal.by.empty() ? principal.by : by ? std::string(*by) : "api";
  out.role = principal.role;
  out.traceparent = only_header(in.headers, field::traceparent);
  out.tracestate = listed_header(in.headers, field::tracestate);
  out.path = std::move(in.path);
  if (!out.path.empty() && out.path.back().empty()) out.path.pop_back();
  out.query = std::move(in.query);
  out.body = std::move(in.body);
  out.body_quota = std::move(in.body_quota);
  return out;
}

net::HttpResponse to_http_response(api::ApiResponse in) {
  net::HttpResponse out;
  out.status = in.status;
  out.headers.push_back({"Cache-Control", "no-store"});
  if (in.retry_after.count() > 0) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(in.retry_after).count();
    out.headers.push_back({"Retry-After", std::to_string(seconds)});
  }
  if (!in.allow.empty()) out.headers.push_back({"Allow", in.allow});
  if (!in.etag.empty()) out.headers.push_back({"ETag", in.etag});
  if (in.status == 401) out.headers.push_back({"WWW-Authenticate", "Bearer"});
  if (!in.text.empty()) {
    out.content_type = "text/plain; version=0.0.4; charset=utf-8";
    out.body = std::move(in.text);
    return out;
  }
  if (in.status >= 400 && !in.rpc) out.content_type = "application/problem+json";
  if (in.status == 304 || (in.rpc && in.body.is_null() && !in.rendered)) {
    out.content_type.clear();
    return out;
  }
  if (!in.location.empty()) out.headers.push_back({"Location", in.location});
  if (!in.rendered) in.rendered = render_body(in.body, false);
  if (in.rendered->gzip) out.headers.push_back({"Content-Encoding", "gzip"});
  out.body = std::move(in.rendered->bytes);
  return out;
}

api::ApiResponse problem_response(const Error& error) {
  return {.status = api::http_status(error.code),
          .body = api::problem(error),
          .location = {},
          .text = {}};
}

}  // namespace ae::app
