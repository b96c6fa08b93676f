// make_verifier, and the verifiers that use HTTP.
#include "tools/verify/verify.h"

#include <fmt/core.h>

#include <span>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "net/outbound.h"
#include "tools/verify/http_verifier.h"
#include "tools/verify/local_verifiers.h"

namespace ae::tools {
namespace {

using Options = HttpVerifier::Options;
using ObserveFn = std::function<Observation(const net::HttpResult& answer)>;

constexpr std::string_view kGithub = "https://api.github.com";
// The member of an issue or a pull request, and the word of `by` that selects it.
constexpr std::string_view kState = "state";

Observation value(std::string text) { return {.unreachable = {}, .value = std::move(text)}; }

ObserveFn header(std::string name) {
  return [name](const net::HttpResult& answer) {
    const auto found = net::find_header(answer.headers, name);
    return found ? value(std::string(*found))
                 : failed_observation(fmt::format("the answer has no {}", name));
  };
}

// Evaluates a JSON response.
ObserveFn body(std::function<Observation(const Value& body)> read) {
  return [read = std::move(read)](const net::HttpResult& answer) {
    const auto parsed = parse_json(answer.body);
    return parsed ? read(*parsed) : failed_observation("the answer is not JSON");
  };
}

Observation field_of(const Template& field, const Value& body) {
  const auto found = field.eval(SingleRootScope(field::result, body));
  if (!found) return failed_observation(found.error().message);
  if (found->is_null()) return failed_observation("the answer has no such field");
  return value(found->is_string() ? found->as_string() : canonical(*found));
}

Status read_common(const Value& definition, bool is_host_literal, Options& options) {
  AE_ASSIGN(options.timeout, timeout_of(definition));
  AE_ASSIGN(options.headers, Headers::parse(definition, is_host_literal));
  return {};
}

Result<Options> http(const Value& definition) {
  const std::string_view kind = definition.text(field::kind);
  Options options;
  if (kind == "http_json") {
    AE_TRY(check_known_keys(definition, {"url", "field", "headers", "timeout", "allow"}));
    AE_ASSIGN(Template field, template_of(definition, "field", field::result));
    options.observe = body([field](const Value& body) { return field_of(field, body); });
  } else {
    AE_TRY(check_known_keys(definition, {"url", "headers", "timeout", "allow"}));
    const bool etag = kind == "http_etag";
    options.observe = header(etag ? "ETag" : "Last-Modified");
    options.recorded = etag ? field::etag : field::version;
    options.same = etag ? same_etag : same_time;
    options.body = false;
  }
  AE_ASSIGN(const TargetUrl url, TargetUrl::parse(definition));
  options.url = [url](const Value& change) { return url.render(change); };
  options.is_host_literal = !url.is_whole_url();
  const Value& allow = definition["allow"];
  if (!allow.is_null() && !allow.is_array())
    return fail(Code::plan_invalid, "allow: a list of hosts");
  for (const Value& host : allow.is_array() ? allow.items() : std::span<const Value>()) {
    if (!host.is_string() || !net::is_valid_host(host.as_string())) {
      return fail(Code::plan_invalid, "allow: HOST or HOST:PORT");
    }
    options.allow.push_back(host.as_string());
  }
  AE_TRY(read_common(definition, !url.is_whole_url(), options));
  return options;
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
    AE_ASSIGN(const std::string name, render_text(repo, change));
    AE_ASSIGN(const std::string path, encoded_path(name));
    AE_ASSIGN(const std::string what, rest(change));
    return fmt::format("{}/repos/{}/{}", api, path, what);
  };
}

void add_github_headers(Options& options) {
  options.default_headers = {{"Accept", "application/vnd.github+json"}, {"User-Agent", "aetheris"}};
}

Result<Options> git_ref(const Value& definition) {
  AE_TRY(check_known_keys(definition, {"api", "repo", "ref", "headers", "timeout"}));
  AE_TRY(text_of(definition, "ref"));
  AE_ASSIGN(const Template ref, template_of(definition, "ref", "change"));
  Options options;
  AE_ASSIGN(options.url, repo_url(definition, [ref](const Value& change) -> Result<std::string> {
              AE_ASSIGN(std::string name, render_text(ref, change));
              if (name.starts_with("refs/")) name.erase(0, 5);
              AE_ASSIGN(const std::string path, encoded_path(name));
              return "git/ref/" + path;
            }));
  options.observe = body([](const Value& body) {
    const std::string_view sha = body["object"].text("sha");
    return sha.empty() ? failed_observation("the answer names no commit") : value(std::string(sha));
  });
  add_github_headers(options);
  AE_TRY(read_common(definition, true, options));
  return options;
}

std::string state_of(const Value& body, std::string_view what) {
  if (what == "release") {
    if (body["draft"] == Value(true)) return "draft";
    return body["prerelease"] == Value(true) ? "prerelease" : "published";
  }
  if (body["merged"] == Value(true)) return "merged";
  return std::string(body.text(kState));
}

Result<Options> github(const Value& definition) {
  AE_TRY(check_known_keys(
      definition, {"api", "repo", "issue", "pull", "release", field::by, "headers", "timeout"}));
  std::string_view what;
  for (const std::string_view one : {"issue", "pull", "release"}) {
    if (!definition.find(one)) continue;
    if (!what.empty()) return fail(Code::plan_invalid, "{}: one of issue, pull, release", one);
    what = one;
  }
  if (what.empty()) return fail(Code::plan_invalid, "github: an issue, pull or release is missing");
  AE_ASSIGN(const Template number, template_of(definition, what, "change"));
  const std::string_view by = definition.text(field::by, "updated_at");
  if (by != "updated_at" && by != kState)
    return fail(Code::plan_invalid, "by: updated_at or state");
  Options options;
  const std::string kind(what);
  AE_ASSIGN(options.url,
            repo_url(definition, [number, kind](const Value& change) -> Result<std::string> {
              AE_ASSIGN(const std::string name, render_text(number, change));
              AE_ASSIGN(const std::string path, encoded_path(name));
              const bool digits = name.find_first_not_of("0123456789") == name.npos;
              if (kind == "release" && !digits) return "releases/tags/" + path;
              return fmt::format("{}s/{}", kind, path);
            }));
  options.observe = body([kind, state = by == kState](const Value& body) {
    std::string observation(body.text("updated_at"));
    if (observation.empty()) observation = body.text("published_at");
    if (state) observation = state_of(body, kind);
    return observation.empty() ? failed_observation("the answer does not contain it")
                               : value(std::move(observation));
  });
  if (by == "updated_at") options.same = same_time;
  add_github_headers(options);
  AE_TRY(read_common(definition, true, options));
  return options;
}

Result<Options> options_of(const Value& definition) {
  const std::string_view kind = definition.text(field::kind);
  if (kind == "git_ref") return git_ref(definition);
  if (kind == "github") return github(definition);
  if (kind.starts_with("http_")) return http(definition);
  return fail(Code::plan_invalid, "verify: there is no verifier {}", kind);
}

}  // namespace

Result<std::unique_ptr<Verifier>> make_verifier(const Value& definition,
                                                VerifierDependencies deps) {
  const std::string_view kind = definition.text(field::kind);
  if (kind == "file") return make_file_verifier(definition, std::move(deps));
  if (kind == "sql") return make_sql_verifier(definition, std::move(deps));
  AE_ASSIGN(Options options, options_of(definition));
  return std::make_unique<HttpVerifier>(std::move(deps), std::move(options));
}

}  // namespace ae::tools
