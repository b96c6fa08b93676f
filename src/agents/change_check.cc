// `changes` and `verify` of a tool: what a success changes outside, and who looks at it after a recovery.
#include "agents/change_check.h"

#include <algorithm>

#include "agents/tool_text.h"

namespace ae::agents {
namespace {

constexpr std::size_t kChangesMax = 64;
constexpr std::size_t kParamsMax = 64;

class ChangeCheck {
 public:
  ChangeCheck(Check& check, const Spot& tool)
      : check_(check), text_(check, "change"), tool_(tool) {}

  CheckedChanges run(bool reads) {
    if (const auto changes = tool_.find("changes")) {
      if (reads) check_.fault(*changes, "`changes` is not allowed with `effect: read`");
      this->changes(*changes);
    }
    if (const auto verify = tool_.find("verify")) {
      if (!tool_.find("changes")) {
        check_.fault(*verify, "`verify` needs `changes`");
      }
      this->verify(*verify);
    }
    return std::move(out_);
  }

 private:
  void put(std::string_view key, Value value) { definition_.emplace_back(key, std::move(value)); }

  // ---- changes

  void changes(const Spot& spot) {
    if (!check_.list(spot)) return;
    if (spot->items.empty() || spot->items.size() > kChangesMax) {
      return check_.fault(spot, "must be a list of 1 to 64 changes");
    }
    std::vector<Value> entries;
    entries.reserve(spot->items.size());
    for (std::size_t i = 0; i < spot->items.size(); ++i) entries.push_back(change(spot.item(i)));
    out_.policy.emplace_back("changes", Value::array(std::move(entries)));
  }

  Value change(const Spot& spot) {
    if (!check_.mapping(spot, {"type", "id", "op", "version", "etag", "ref"})) return {};
    check_.required(spot, "type", "the resource type, such as charge");
    check_.required(spot, "id", "the resource id, such as ${ .result.id }");
    check_.required(spot, "op", "create, update or delete");
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const Spot part{&spot->items[i], spot.path_of(spot->keys[i].text)};
      if (!check_.text(part)) continue;
      reads_only(check_, part, {"args", "call", "result"});
    }
    return spot->value();
  }

  // ---- verify

  void verify(const Spot& spot) {
    if (!check_.mapping(spot, {"http_etag", "http_last_modified", "http_json", "file", "git_ref",
                               "github", "sql", "mode", "headers", "timeout"})) {
      return;
    }
    constexpr std::string_view kKinds[] = {
        "http_etag", "http_last_modified", "http_json", "file", "git_ref", "github", "sql"};
    std::string_view kind;
    for (const std::string_view one : kKinds) {
      const auto found = spot.find(one);
      if (!found) continue;
      if (!kind.empty()) {
        check_.fault(*found,
                     "`verify` can have only one method; `" + std::string(kind) + "` is also set");
        continue;
      }
      kind = one;
      put("kind", kind);
      this->kind(*found, kind);
    }
    if (kind.empty()) {
      check_.fault(spot,
                   "`verify` needs one of http_etag, http_last_modified, http_json, file, git_ref, "
                   "github or sql");
    }
    std::vector<Member> policy{{"by", kind}};
    if (const auto mode = spot.find("mode")) {
      constexpr std::string_view kModes[] = {"strict", "warn", "human"};
      if (const auto word = check_.word(*mode, {"strict", "warn", "human"})) {
        policy.emplace_back("mode", kModes[*word]);
      }
    }
    const bool asks = kind != "file" && kind != "sql";
    for (const std::string_view key : {"headers", "timeout"}) {
      const auto found = spot.find(key);
      if (found && !asks) {
        check_.fault(*found, "`" + std::string(key) + "` is for HTTP checks only");
      }
    }
    if (const auto timeout = spot.find("timeout"); timeout && asks) {
      if (const auto span = check_.duration(*timeout, kDurationLeast)) {
        put("timeout", to_text(*span));
      }
    }
    if (const auto list = spot.find("headers"); list && asks) headers(*list);
    out_.policy.emplace_back("verify", Value::object(std::move(policy)));
    out_.verify = Value::object(std::move(definition_));
  }

  void kind(const Spot& spot, std::string_view kind) {
    if (kind == "http_etag" || kind == "http_last_modified") return url(spot);
    if (kind == "http_json") return http_json(spot);
    if (kind == "file") return file(spot);
    if (kind == "git_ref") return git_ref(spot);
    if (kind == "github") return github(spot);
    sql(spot);
  }

  // Written out up to its path, or one ${ } that gives a whole url.
  void url(const Spot& spot) {
    auto text = text_.resolved(spot, Secrets::refused);
    if (!text) return;
    const auto parts = Template::parts(*text);
    whole_url_ = parts && parts->size() == 1 && std::holds_alternative<Expr>(parts->front());
    if (!whole_url_) text_.url(spot, *text);
    if (whole_url_) {
      if (!check_.outbound().empty()) put("allow", Value::array(check_.outbound()));
      check_.note(spot.path,
                  "the tool's result chooses this host; only public addresses and the hosts of "
                  "`outbound.allow` are allowed");
    }
    put("url", *std::move(text));
  }

  void filled(const Spot& spot, std::string_view key) {
    if (auto text = text_.resolved(spot, Secrets::refused)) {
      if (text->empty()) check_.fault(spot, "must not be empty");
      put(key, *std::move(text));
    }
  }

  void http_json(const Spot& spot) {
    if (!check_.mapping(spot, {"url", "field"})) return;
    if (const auto target = check_.required(spot, "url", "http://… or https://…")) url(*target);
    if (const auto field =
            check_.required(spot, "field", "a single ${ … } over .result, the response")) {
      if (reads_only(check_, *field, {"result"}) && !is_one_expression(*field->value)) {
        check_.fault(*field, "`field` must be a single ${ … } over .result, the response");
      }
      put("field", (*field)->value());
    }
  }

  void file(const Spot& spot) {
    if (spot->is_string()) return file_path(spot, false);
    if (!check_.mapping(spot, {"path", "by", "below"})) return;
    const auto below = spot.find("below");
    if (const auto path = check_.required(spot, "path", "the path of the file")) {
      file_path(*path, below.has_value());
    }
    if (below) folders(*below);
    if (const auto by = spot.find("by")) {
      constexpr std::string_view kBy[] = {"sha256", "size", "mtime"};
      if (const auto word = check_.word(*by, {"sha256", "size", "mtime"})) put("by", kBy[*word]);
    }
  }

  void file_path(const Spot& spot, bool below) {
    filled(spot, "path");
    if (below || !spot->is_string() || !has_expression(spot->scalar.as_string())) return;
    check_.note(
        spot.path,
        "the tool's result chooses this path; only files below the agents file's folder are "
        "read; list other folders in `below`");
  }

  void folders(const Spot& spot) {
    if (!check_.list(spot)) return;
    if (spot->items.empty() || spot->items.size() > kParamsMax) {
      return check_.fault(spot, "must be a list of 1 to 64 folders");
    }
    std::vector<Value> folders;
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const Spot item = spot.item(i);
      auto text = text_.literal(item);
      if (!text) continue;
      if (text->empty() || text->find('\0') != text->npos)
        check_.fault(item, "must be a folder path");
      folders.emplace_back(*std::move(text));
    }
    put("below", Value::array(std::move(folders)));
  }

  void api(const Spot& spot) {
    const auto api = spot.find("api");
    if (!api) return;
    if (auto text = text_.literal(*api)) {
      text_.url(*api, *text);
      put("api", *std::move(text));
    }
  }

  void git_ref(const Spot& spot) {
    if (!check_.mapping(spot, {"api", "repo", "ref"})) return;
    api(spot);
    if (const auto repo = check_.required(spot, "repo", "owner/name")) filled(*repo, "repo");
    if (const auto ref = check_.required(spot, "ref", "such as heads/main")) filled(*ref, "ref");
  }

  void github(const Spot& spot) {
    if (!check_.mapping(spot, {"api", "repo", "issue", "pull", "release", "by"})) return;
    api(spot);
    if (const auto repo = check_.required(spot, "repo", "owner/name")) filled(*repo, "repo");
    std::string_view what;
    for (const std::string_view one : {"issue", "pull", "release"}) {
      const auto found = spot.find(one);
      if (!found) continue;
      if (!what.empty()) {
        check_.fault(
            *found, "only one of issue, pull and release; `" + std::string(what) + "` is also set");
        continue;
      }
      what = one;
      if ((*found)->scalar.is_integer()) {
        put(one, std::to_string((*found)->scalar.as_int()));
      } else {
        filled(*found, one);
      }
    }
    if (what.empty()) check_.fault(spot, "needs one of issue, pull or release");
    if (const auto by = spot.find("by")) {
      constexpr std::string_view kBy[] = {"updated_at", "state"};
      if (const auto word = check_.word(*by, {"updated_at", "state"})) put("by", kBy[*word]);
    }
  }

  void sql(const Spot& spot) {
    if (!check_.mapping(spot, {"store", "query", "params"})) return;
    constexpr std::string_view kStore = "the path of a SQLite database, or postgres://…";
    if (const auto store = check_.required(spot, "store", std::string(kStore))) {
      if (auto where = text_.literal(*store, Secrets::replaced)) {
        if (where->empty() || where->find('\0') != where->npos) {
          check_.fault(*store, "must be " + std::string(kStore));
        }
        put("store", *std::move(where));
      }
    }
    if (const auto query = check_.required(spot, "query", "SELECT version FROM … WHERE id = ?")) {
      if (auto text = text_.literal(*query)) {
        if (text->empty()) check_.fault(*query, "must not be empty");
        put("query", *std::move(text));
      }
    }
    if (const auto params = spot.find("params"); params && check_.list(*params)) {
      if ((*params)->items.size() > kParamsMax) check_.fault(*params, "at most 64 parameters");
      if (auto values = text_.resolved_value(*params)) put("params", *std::move(values));
    }
  }

  // A secret must not go where an answer says.
  void headers(const Spot& spot) {
    if (whole_url_) {
      check_.fault(spot,
                   "headers need a literal host: start the url with http://… or "
                   "https://…");
      return;
    }
    if (!check_.any_mapping(spot)) return;
    if (spot->items.size() > kHeadersMax) return check_.fault(spot, "at most 64 headers");
    std::vector<Member> headers;
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const Located::Key& key = spot->keys[i];
      const Spot value{&spot->items[i], spot.path_of(key.text)};
      if (!is_header_name(key.text)) {
        check_.fault_at(key.at, value.path, shown(key.text) + " is not a valid header name");
        continue;
      }
      auto text = text_.literal(value, Secrets::replaced);
      if (!text) continue;
      if (text->find_first_of(std::string_view("\r\n\0", 3)) != text->npos) {
        check_.fault(value, "a header value cannot contain a line break or NUL");
      }
      const auto same = [&](const Member& other) { return other.first == key.text; };
      if (std::ranges::none_of(headers, same)) headers.emplace_back(key.text, *std::move(text));
    }
    put("headers", Value::object(std::move(headers)));
  }

  Check& check_;
  ToolText text_;
  const Spot& tool_;
  CheckedChanges out_;
  std::vector<Member> definition_;
  bool whole_url_ = false;
};

}  // namespace

CheckedChanges check_changes(Check& check, const Spot& tool, bool reads) {
  return ChangeCheck(check, tool).run(reads);
}

}  // namespace ae::agents
