// ChangeCheck: `changes` and `verify` of a tool: the external changes of a success, and their
// verification after a recovery.
#include "agents/change_check.h"

#include <fmt/core.h>

#include <algorithm>

#include "agents/tool_text.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

constexpr std::size_t kChangesMax = 64;
constexpr std::size_t kParamsMax = 64;

class ChangeCheck {
 public:
  ChangeCheck(CheckContext& check, const SourceNode& tool)
      : check_(check), text_(check, "change"), tool_(tool) {}

  CheckedChanges run(bool reads) {
    if (const auto changes = tool_.find("changes")) {
      if (reads) check_.report(*changes, "`changes` is not allowed with `effect: read`");
      this->changes(*changes);
    }
    if (const auto verify = tool_.find("verify")) {
      if (!tool_.find("changes")) {
        check_.report(*verify, "`verify` needs `changes`");
      }
      this->verify(*verify);
    }
    return std::move(out_);
  }

 private:
  void put(std::string_view key, Value value) { definition_.emplace_back(key, std::move(value)); }

  // ---- changes

  void changes(const SourceNode& source_node) {
    if (!check_.list(source_node)) return;
    if (source_node->items.empty() || source_node->items.size() > kChangesMax) {
      return check_.report(source_node, "must be a list of 1 to 64 changes");
    }
    std::vector<Value> entries;
    entries.reserve(source_node->items.size());
    for (std::size_t i = 0; i < source_node->items.size(); ++i)
      entries.push_back(change(source_node.item(i)));
    out_.policy.emplace_back("changes", Value::array(std::move(entries)));
  }

  Value change(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::change)) return {};
    check_.required(source_node, "type", "the resource type, such as charge");
    check_.required(source_node, "id", "the resource id, such as ${ .result.id }");
    check_.required(source_node, "op", "create, update or delete");
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceNode part{&source_node->items[i], source_node.path_of(source_node->keys[i].text)};
      if (!check_.text(part)) continue;
      reads_only(check_, part, {"args", "call", field::result});
    }
    return source_node->value();
  }

  // ---- verify

  void verify(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::verify)) {
      return;
    }
    const Shape& shape = shape_of(Mapping::verify);
    std::string_view kind;
    for (const std::string_view one : shape.kinds) {
      const auto found = source_node.find(one);
      if (!found) continue;
      if (!kind.empty()) {
        check_.report(*found,
                      fmt::format("`verify` can have only one method; `{}` is also set", kind));
        continue;
      }
      kind = one;
      put(field::kind, kind);
      this->kind(*found, kind);
    }
    if (kind.empty()) {
      check_.report(
          source_node,
          "`verify` needs one of http_etag, http_last_modified, http_json, file, git_ref, "
          "github or sql");
    }
    std::vector<Member> policy{{field::by, kind}};
    if (const auto mode = source_node.find("mode")) {
      if (const auto word = check_.word(*mode, Words::confirm_mode)) {
        policy.emplace_back("mode", *word);
      }
    }
    const bool uses_http = kind.empty() || contains(shape.keys_of(kind), "headers");
    if (!uses_http) {
      check_.misplaced(source_node, shape, kind, [](std::string_view key, const auto&) {
        return fmt::format("`{}` is for HTTP checks only", key);
      });
    }
    if (const auto timeout = source_node.find("timeout"); timeout && uses_http) {
      if (const auto span = check_.duration(*timeout, kDurationMin)) {
        put("timeout", to_text(*span));
      }
    }
    if (const auto list = source_node.find("headers"); list && uses_http) headers(*list);
    out_.policy.emplace_back("verify", Value::object(std::move(policy)));
    out_.verify = Value::object(std::move(definition_));
  }

  void kind(const SourceNode& source_node, std::string_view kind) {
    if (kind == "http_etag" || kind == "http_last_modified") return url(source_node);
    if (kind == "http_json") return http_json(source_node);
    if (kind == "file") return file(source_node);
    if (kind == "git_ref") return git_ref(source_node);
    if (kind == "github") return github(source_node);
    sql(source_node);
  }

  // Either literal up to its path, or one ${ } that evaluates to a whole URL.
  void url(const SourceNode& source_node) {
    auto text = text_.resolved(source_node, Secrets::refused);
    if (!text) return;
    const auto parts = Template::parts(*text);
    whole_url_ = parts && parts->size() == 1 && std::holds_alternative<Expr>(parts->front());
    if (!whole_url_) text_.url(source_node, *text);
    if (whole_url_) {
      if (!check_.outbound().empty()) put("allow", Value::array(check_.outbound()));
      check_.add_note(source_node.path,
                      "the tool's result chooses this host; only public addresses and the hosts of "
                      "`outbound.allow` are allowed");
    }
    put("url", *std::move(text));
  }

  void filled(const SourceNode& source_node, std::string_view key) {
    if (auto text = text_.resolved(source_node, Secrets::refused)) {
      if (text->empty()) check_.report(source_node, "must not be empty");
      put(key, *std::move(text));
    }
  }

  void http_json(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::http_json)) return;
    if (const auto target = check_.required(source_node, "url", "http://… or https://…"))
      url(*target);
    if (const auto field =
            check_.required(source_node, "field", "a single ${ … } over .result, the response")) {
      if (reads_only(check_, *field, {field::result}) && !is_one_expression(*field->value)) {
        check_.report(*field, "`field` must be a single ${ … } over .result, the response");
      }
      put("field", (*field)->value());
    }
  }

  void file(const SourceNode& source_node) {
    if (source_node->is_string()) return file_path(source_node, false);
    if (!check_.mapping(source_node, Mapping::file)) return;
    const auto below = source_node.find("below");
    if (const auto path = check_.required(source_node, "path", "the path of the file")) {
      file_path(*path, below.has_value());
    }
    if (below) folders(*below);
    if (const auto by = source_node.find(field::by)) {
      if (const auto word = check_.word(*by, Words::file_by)) put(field::by, *word);
    }
  }

  void file_path(const SourceNode& source_node, bool below) {
    filled(source_node, "path");
    if (below || !source_node->is_string() || !has_expression(source_node->scalar.as_string()))
      return;
    check_.add_note(
        source_node.path,
        "the tool's result chooses this path; only files below the agents file's folder are "
        "read; list other folders in `below`");
  }

  void folders(const SourceNode& source_node) {
    if (!check_.list(source_node)) return;
    if (source_node->items.empty() || source_node->items.size() > kParamsMax) {
      return check_.report(source_node, "must be a list of 1 to 64 folders");
    }
    std::vector<Value> folders;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceNode item = source_node.item(i);
      auto text = text_.literal(item);
      if (!text) continue;
      if (text->empty() || text->find('\0') != text->npos)
        check_.report(item, "must be a folder path");
      folders.emplace_back(*std::move(text));
    }
    put("below", Value::array(std::move(folders)));
  }

  void api(const SourceNode& source_node) {
    const auto api = source_node.find("api");
    if (!api) return;
    if (auto text = text_.literal(*api)) {
      text_.url(*api, *text);
      put("api", *std::move(text));
    }
  }

  void git_ref(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::git_ref)) return;
    api(source_node);
    if (const auto repo = check_.required(source_node, "repo", "owner/name")) filled(*repo, "repo");
    if (const auto ref = check_.required(source_node, "ref", "such as heads/main"))
      filled(*ref, "ref");
  }

  void github(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::github)) return;
    api(source_node);
    if (const auto repo = check_.required(source_node, "repo", "owner/name")) filled(*repo, "repo");
    std::string_view what;
    for (const std::string_view one : shape_of(Mapping::github).kinds) {
      const auto found = source_node.find(one);
      if (!found) continue;
      if (!what.empty()) {
        check_.report(*found,
                      fmt::format("only one of issue, pull and release; `{}` is also set", what));
        continue;
      }
      what = one;
      if ((*found)->scalar.is_integer()) {
        put(one, std::to_string((*found)->scalar.as_int()));
      } else {
        filled(*found, one);
      }
    }
    if (what.empty()) check_.report(source_node, "needs one of issue, pull or release");
    if (const auto by = source_node.find(field::by)) {
      if (const auto word = check_.word(*by, Words::github_by)) put(field::by, *word);
    }
  }

  void sql(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::sql)) return;
    constexpr std::string_view kStore = "the path of a SQLite database, or postgres://…";
    if (const auto store = check_.required(source_node, "store", kStore)) {
      if (auto where = text_.literal(*store, Secrets::replaced)) {
        if (where->empty() || where->find('\0') != where->npos) {
          check_.report(*store, fmt::format("must be {}", kStore));
        }
        put("store", *std::move(where));
      }
    }
    if (const auto query =
            check_.required(source_node, "query", "SELECT version FROM … WHERE id = ?")) {
      if (auto text = text_.literal(*query)) {
        if (text->empty()) check_.report(*query, "must not be empty");
        put("query", *std::move(text));
      }
    }
    if (const auto params = source_node.find("params"); params && check_.list(*params)) {
      if ((*params)->items.size() > kParamsMax) check_.report(*params, "at most 64 parameters");
      if (auto values = text_.resolved_value(*params)) put("params", *std::move(values));
    }
  }

  // Secrets must not be sent to a host that data chose.
  void headers(const SourceNode& source_node) {
    if (whole_url_) {
      check_.report(source_node,
                    "headers need a literal host: start the url with http://… or "
                    "https://…");
      return;
    }
    if (!check_.any_mapping(source_node)) return;
    if (source_node->items.size() > kHeadersMax)
      return check_.report(source_node, "at most 64 headers");
    std::vector<Member> headers;
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const SourceTree::Key& key = source_node->keys[i];
      const SourceNode value{&source_node->items[i], source_node.path_of(key.text)};
      if (!is_header_name(key.text)) {
        check_.report_at(key.at, value.path,
                         fmt::format("{} is not a valid header name", quote(key.text)));
        continue;
      }
      auto text = text_.literal(value, Secrets::replaced);
      if (!text) continue;
      if (text->find_first_of(std::string_view("\r\n\0", 3)) != text->npos) {
        check_.report(value, "a header value cannot contain a line break or NUL");
      }
      const auto same = [&](const Member& other) { return other.first == key.text; };
      if (std::ranges::none_of(headers, same)) headers.emplace_back(key.text, *std::move(text));
    }
    put("headers", Value::object(std::move(headers)));
  }

  CheckContext& check_;
  ToolText text_;
  const SourceNode& tool_;
  CheckedChanges out_;
  std::vector<Member> definition_;
  bool whole_url_ = false;
};

}  // namespace

CheckedChanges check_changes(CheckContext& check, const SourceNode& tool, bool reads) {
  return ChangeCheck(check, tool).run(reads);
}

}  // namespace ae::agents
