// Which verifier a definition means, and those that ask over HTTP.
#include "tools/verify/verify.h"

#include <span>
#include <utility>

#include "json/json.h"
#include "net/outbound.h"
#include "tools/verify/http_look.h"
#include "tools/verify/local.h"

namespace ae::tools {
namespace {

using How = HttpLook::How;
using See = std::function<Seen(const net::HttpAnswer& answer)>;

constexpr std::string_view kGithub = "https://api.github.com";

Seen value(std::string text) { return {.unreachable = {}, .value = std::move(text)}; }

See header(std::string name) {
  return [name](const net::HttpAnswer& answer) {
    const auto found = net::find_header(answer.headers, name);
    return found ? value(std::string(*found)) : cannot("the answer has no " + name);
  };
}

// What a JSON answer gives.
See body(std::function<Seen(const Value& body)> read) {
  return [read = std::move(read)](const net::HttpAnswer& answer) {
    const auto parsed = parse_json(answer.body);
    return parsed ? read(*parsed) : cannot("the answer is not JSON");
  };
}

Seen field_of(const Template& field, const Value& body) {
  const auto found = field.eval(OneRoot("result", body));
  if (!found) return cannot(found.error().message);
  if (found->is_null()) return cannot("the answer has no such field");
  return value(found->is_string() ? found->as_string() : canonical(*found));
}

Status common(const Value& definition, bool host_is_written, How& how) {
  AE_ASSIGN(how.timeout, timeout_of(definition));
  AE_ASSIGN(how.headers, Headers::parse(definition, host_is_written));
  return {};
}

Result<How> http(const Value& definition) {
  const std::string_view kind = definition.text("kind");
  How how;
  if (kind == "http_json") {
    AE_TRY(known_keys(definition, {"url", "field", "headers", "timeout", "allow"}));
    AE_ASSIGN(Template field, template_of(definition, "field", "result"));
    how.see = body([field](const Value& body) { return field_of(field, body); });
  } else {
    AE_TRY(known_keys(definition, {"url", "headers", "timeout", "allow"}));
    const bool etag = kind == "http_etag";
    how.see = header(etag ? "ETag" : "Last-Modified");
    how.recorded = etag ? "etag" : "version";
    how.same = etag ? same_etag : same_time;
    how.body = false;
  }
  AE_ASSIGN(const TargetUrl url, TargetUrl::parse(definition));
  how.url = [url](const Value& change) { return url.render(change); };
  how.host_is_written = !url.whole();
  const Value& allow = definition["allow"];
  if (!allow.is_null() && !allow.is_array())
    return fail(Code::plan_invalid, "allow: a list of hosts");
  for (const Value& host : allow.is_array() ? allow.items() : std::span<const Value>()) {
    if (!host.is_string() || !net::is_host(host.as_string())) {
      return fail(Code::plan_invalid, "allow: HOST or HOST:PORT");
    }
    how.allow.push_back(host.as_string());
  }
  AE_TRY(common(definition, !url.whole(), how));
  return how;
}

// ---- GitHub-compatible servers

// {api}/repos/{owner}/{name}/{rest}
Result<std::function<Result<std::string>(const Value&)>> repo_url(
    const Value& definition, std::function<Result<std::string>(const Value&)> rest) {
  std::string api(definition.text("api", kGithub));
  if (api.ends_with('/')) api.pop_back();
  auto written = UrlTemplate::parse(api + "/");
  if (!written) {
    return fail(Code::plan_invalid, "api: a literal url, such as https://api.github.com");
  }
  AE_TRY(text_of(definition, "repo"));
  AE_ASSIGN(const Template repo, template_of(definition, "repo", "change"));
  return [api, repo, rest = std::move(rest)](const Value& change) -> Result<std::string> {
    AE_ASSIGN(const std::string name, filled(repo, change));
    AE_ASSIGN(const std::string path, encoded_path(name));
    AE_ASSIGN(const std::string what, rest(change));
    return api + "/repos/" + path + "/" + what;
  };
}

void as_github(How& how) {
  how.fixed = {{"Accept", "application/vnd.github+json"}, {"User-Agent", "aetheris"}};
}

Result<How> git_ref(const Value& definition) {
  AE_TRY(known_keys(definition, {"api", "repo", "ref", "headers", "timeout"}));
  AE_TRY(text_of(definition, "ref"));
  AE_ASSIGN(const Template ref, template_of(definition, "ref", "change"));
  How how;
  AE_ASSIGN(how.url, repo_url(definition, [ref](const Value& change) -> Result<std::string> {
              AE_ASSIGN(std::string name, filled(ref, change));
              if (name.starts_with("refs/")) name.erase(0, 5);
              AE_ASSIGN(const std::string path, encoded_path(name));
              return "git/ref/" + path;
            }));
  how.see = body([](const Value& body) {
    const std::string_view sha = body["object"].text("sha");
    return sha.empty() ? cannot("the answer names no commit") : value(std::string(sha));
  });
  as_github(how);
  AE_TRY(common(definition, true, how));
  return how;
}

std::string state_of(const Value& body, std::string_view what) {
  if (what == "release") {
    if (body["draft"] == Value(true)) return "draft";
    return body["prerelease"] == Value(true) ? "prerelease" : "published";
  }
  if (body["merged"] == Value(true)) return "merged";
  return std::string(body.text("state"));
}

Result<How> github(const Value& definition) {
  AE_TRY(known_keys(definition,
                    {"api", "repo", "issue", "pull", "release", "by", "headers", "timeout"}));
  std::string_view what;
  for (const std::string_view one : {"issue", "pull", "release"}) {
    if (!definition.find(one)) continue;
    if (!what.empty())
      return fail(Code::plan_invalid, std::string(one) + ": one of issue, pull, release");
    what = one;
  }
  if (what.empty()) return fail(Code::plan_invalid, "github: an issue, pull or release is missing");
  AE_ASSIGN(const Template number, template_of(definition, what, "change"));
  const std::string_view by = definition.text("by", "updated_at");
  if (by != "updated_at" && by != "state")
    return fail(Code::plan_invalid, "by: updated_at or state");
  How how;
  const std::string kind(what);
  AE_ASSIGN(how.url,
            repo_url(definition, [number, kind](const Value& change) -> Result<std::string> {
              AE_ASSIGN(const std::string name, filled(number, change));
              AE_ASSIGN(const std::string path, encoded_path(name));
              const bool digits = name.find_first_not_of("0123456789") == name.npos;
              if (kind == "release" && !digits) return "releases/tags/" + path;
              return kind + "s/" + path;
            }));
  how.see = body([kind, state = by == "state"](const Value& body) {
    std::string seen(body.text("updated_at"));
    if (seen.empty()) seen = body.text("published_at");
    if (state) seen = state_of(body, kind);
    return seen.empty() ? cannot("the answer does not contain it") : value(std::move(seen));
  });
  if (by == "updated_at") how.same = same_time;
  as_github(how);
  AE_TRY(common(definition, true, how));
  return how;
}

Result<How> how_of(const Value& definition) {
  const std::string_view kind = definition.text("kind");
  if (kind == "git_ref") return git_ref(definition);
  if (kind == "github") return github(definition);
  if (kind.starts_with("http_")) return http(definition);
  return fail(Code::plan_invalid, "verify: there is no verifier " + std::string(kind));
}

}  // namespace

Result<std::unique_ptr<Verifier>> make_verifier(const Value& definition, VerifierNeeds needs) {
  const std::string_view kind = definition.text("kind");
  if (kind == "file") return make_file_verifier(definition, std::move(needs));
  if (kind == "sql") return make_sql_verifier(definition, std::move(needs));
  AE_ASSIGN(How how, how_of(definition));
  return std::make_unique<HttpLook>(std::move(needs), std::move(how));
}

}  // namespace ae::tools
