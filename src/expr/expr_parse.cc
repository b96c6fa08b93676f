// Parses the text of an expression to its tree: precedence climbing over the tokens of expr_lex.h.
//
// The parser tracks what `.` refers to. At the top it is the scope, whose roots are named and
// collected; after a pipe it is the piped value. It also tracks how many values each part can give,
// and rejects a part that could give several where one is required. Errors are thrown and caught
// within this file.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/utf8.h"
#include "expr/expr_functions.h"
#include "expr/expr_lex.h"
#include "expr/expr_program.h"

namespace ae::expr {
namespace {

struct SyntaxError {
  std::size_t at;
  std::string message;
};

struct Infix {
  std::string_view sign;
  int precedence;
  Op op;
};
constexpr int kAlternative = 1;  // right-associative, the others left-associative
constexpr int kComparison = 4;   // non-associative
constexpr int kProduct = 6;
constexpr Infix kInfixes[] = {
    {"//", kAlternative, Op::alternative},
    {"or", 2, Op::logical_or},
    {"and", 3, Op::logical_and},
    {"==", kComparison, Op::equal},
    {"!=", kComparison, Op::not_equal},
    {"<", kComparison, Op::less},
    {"<=", kComparison, Op::less_equal},
    {">", kComparison, Op::greater},
    {">=", kComparison, Op::greater_equal},
    {"+", 5, Op::add},
    {"-", 5, Op::subtract},
    {"*", kProduct, Op::multiply},
    {"/", kProduct, Op::divide},
    {"%", kProduct, Op::modulo},
};

constexpr std::string_view kKeywords[] = {"if",     "then",    "elif",    "else",  "end",    "as",
                                          "reduce", "foreach", "def",     "try",   "catch",  "and",
                                          "or",     "import",  "include", "label", "__loc__"};

bool is_keyword(std::string_view name) {
  return std::ranges::find(kKeywords, name) != std::end(kKeywords);
}

std::uint32_t narrow(std::size_t offset) { return static_cast<std::uint32_t>(offset); }

std::string quoted(std::string_view text) {
  return std::string("`").append(truncate_utf8(text, 40)).append("`");
}

// Sets a member until the end of a block.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& where, T value) : where_(where), before_(std::exchange(where, value)) {}
  ~ScopedValue() { where_ = before_; }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& where_;
  T before_;
};

class Parser {
 public:
  Parser(std::string_view source, const ExprLimits& limits) : lexer_(source), limits_(limits) {}

  ParsedSource parse() {
    advance();
    if (token_.kind == Tok::end) error_at(token_.at, "the expression is empty");
    NodePtr tree = pipe();
    if (token_.kind != Tok::end) unexpected("the end of the expression");
    require_one_value(*tree);
    return {.tree = std::move(tree), .slots = slots_, .roots = std::move(roots_)};
  }

 private:
  [[noreturn]] void error_at(std::size_t at, std::string message) const {
    throw SyntaxError{.at = at, .message = std::move(message)};
  }

  [[noreturn]] void unexpected(std::string_view expected) const {
    if (token_.kind == Tok::bad) error_at(token_.at, std::string(token_.text));
    if (is("=") ||
        (token_.kind == Tok::sign && token_.text.size() > 1 && token_.text.back() == '=' &&
         (token_.text[0] == '|' || token_.text.find_first_of("+-*/%") == 0))) {
      error_at(token_.at,
               quoted(token_.text) +
                   " changes a value in place, which expressions cannot; build a new value: "
                   "`. + {name: value}`, or compare with `==`");
    }
    const std::string what = token_.kind == Tok::end ? "the end" : quoted(token_.text);
    error_at(token_.at,
             std::string("expected ").append(expected).append(" but found ").append(what));
  }

  // Tokens.
  void advance() {
    token_ = lexer_.next();
    if (token_.kind == Tok::bad) error_at(token_.at, std::string(token_.text));
  }
  bool is(std::string_view sign) const { return token_.kind == Tok::sign && token_.text == sign; }
  bool is_name(std::string_view name) const {
    return token_.kind == Tok::name && token_.text == name;
  }
  bool accept(std::string_view sign) {
    if (!is(sign)) return false;
    advance();
    return true;
  }
  void expect(std::string_view sign) {
    if (!accept(sign)) unexpected(quoted(sign));
  }
  void expect_name(std::string_view name) {
    if (!is_name(name)) unexpected(quoted(name));
    advance();
  }

  // Trees.
  NodePtr make(Op op, std::size_t at) const {
    auto node = std::make_unique<Node>();
    node->op = op;
    node->at = node->count_source = narrow(at);
    return node;
  }
  template <class... Kids>
  NodePtr make(Op op, std::size_t at, Kids... children) const {
    NodePtr node = make(op, at);
    (adopt(*node, std::move(children)), ...);
    return node;
  }
  static void raise_count(Node& node, Count count, std::uint32_t count_source) {
    if (count <= node.count) return;
    node.count = count;
    node.count_source = count_source;
  }
  void grow(Node& node, std::uint32_t height) const {
    node.height = std::max(node.height, height);
    if (node.height > kHeightMax) {
      error_at(node.at, "too many operators in a row or nested; name parts with `… as $x | …`");
    }
  }
  void count_child(Node& node, const Node& child) const {
    raise_count(node, child.count, child.count_source);
    grow(node, child.height + 1);
  }
  void adopt(Node& node, NodePtr child) const {
    count_child(node, *child);
    node.children.push_back(std::move(child));
  }
  NodePtr literal(std::size_t at, Value value) const {
    NodePtr node = make(Op::literal, at);
    node->value = std::move(value);
    return node;
  }
  static bool is_text_literal(const Node& node) {
    return node.op == Op::literal && node.value.is_string();
  }

  void require_one_value(const Node& node) const {
    if (node.count == Count::many) {
      error_at(node.count_source,
               "this can give many values where one is needed; collect them: `[ … ]`");
    }
    if (node.count == Count::filtered) {
      error_at(
          node.count_source,
          "this can give no value where one is needed; use it inside `[ … ]` or `map(…)`, or add "
          "a default: `… // other`");
    }
  }

  class Deeper {
   public:
    Deeper(Parser& parser, bool nesting) : parser_(parser), nesting_(nesting) {
      if (nesting && ++parser.nesting_ > parser.limits_.depth_max) {
        parser.error_at(parser.token_.at, "nested deeper than " +
                                              std::to_string(parser.limits_.depth_max) + " levels");
      }
      if (++parser.frames_ > kHeightMax) {
        parser.error_at(parser.token_.at,
                        "too many operators in a row or nested; name parts with `… as $x | …`");
      }
    }
    ~Deeper() {
      if (nesting_) --parser_.nesting_;
      --parser_.frames_;
    }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Parser& parser_;
    bool nesting_;
  };

  // A | B | C
  NodePtr pipe() {
    const Deeper deeper(*this, true);
    const ScopedValue as(as_binds_, true);
    const std::size_t at = token_.at;
    NodePtr first = list();
    if (!is("|")) return first;
    const ScopedValue scope(at_scope_, false);
    NodePtr node = make(Op::pipe, at, std::move(first));
    while (accept("|")) adopt(*node, list());
    if (node->count != Count::one) grow(*node, node->height + narrow(node->children.size()));
    return node;
  }

  // A , B , C
  NodePtr list() {
    NodePtr first = infix(kAlternative);
    if (!comma_allowed_ || !is(",")) return first;
    NodePtr node = make(Op::comma, token_.at, std::move(first));
    while (accept(",")) adopt(*node, infix(kAlternative));
    node->count = Count::many;
    node->count_source = node->at;
    return node;
  }

  const Infix* peek_infix() const {
    if (token_.kind != Tok::sign && token_.kind != Tok::name) return nullptr;
    const auto* found = std::ranges::find(kInfixes, token_.text, &Infix::sign);
    return found == std::end(kInfixes) ? nullptr : found;
  }

  // An expression of the infix operators with at least the precedence `least`.
  NodePtr infix(int least) {
    const Deeper deeper(*this, false);
    const std::size_t at = token_.at;
    NodePtr left = accept("-") ? negated(at) : postfix();
    for (;;) {
      const Infix* infix_found = peek_infix();
      if (infix_found == nullptr || infix_found->precedence < least) return left;
      const std::size_t sign_at = token_.at;
      advance();
      const int precedence = infix_found->precedence;
      NodePtr right = infix(precedence == kAlternative ? precedence : precedence + 1);
      left = infix_found->op == Op::alternative
                 ? alternative(sign_at, std::move(left), std::move(right))
                 : make(infix_found->op, sign_at, std::move(left), std::move(right));
      const Infix* next = peek_infix();
      if (precedence == kComparison && next != nullptr && next->precedence == kComparison) {
        error_at(token_.at, "comparisons do not chain; join them with `and`");
      }
    }
  }

  NodePtr negated(std::size_t at) {
    NodePtr child = infix(kProduct);
    if (child->op == Op::literal && child->value.is_number()) {
      return literal(at, Value(-child->value.as_number()));
    }
    return make(Op::negate, at, std::move(child));
  }

  // A // B: B is used if A gives no value, so A matters only if it may give many.
  NodePtr alternative(std::size_t at, NodePtr left, NodePtr right) {
    NodePtr node = make(Op::alternative, at);
    if (left->count == Count::many) raise_count(*node, left->count, left->count_source);
    grow(*node, left->height + 1);
    node->children.push_back(std::move(left));
    adopt(*node, std::move(right));
    return node;
  }

  // A term, its path, `?`, and `as $x | …`.
  NodePtr postfix() {
    const std::size_t at = token_.at;
    bool indexed = token_.kind == Tok::field || token_.kind == Tok::dot;
    NodePtr term = primary();
    for (;;) {
      Suffix suffix;
      if (accept("?")) {
        if (indexed && term->op == Op::path && !term->suffixes.back().optional) {
          term->suffixes.back().optional = true;
          raise_count(*term, Count::maybe, narrow(at));
        } else {
          term = attempt(at, std::move(term));
        }
      } else if (read_suffix(suffix)) {
        term = append(std::move(term), std::move(suffix));
        indexed = true;
      } else {
        break;
      }
    }
    if (term->op == Op::path && term->count != Count::one) {
      grow(*term, term->height + narrow(term->suffixes.size()));
    }
    return as_binds_ && is_name("as") ? bind(at, std::move(term)) : std::move(term);
  }

  NodePtr attempt(std::size_t at, NodePtr child) {
    NodePtr node = make(Op::attempt, at, std::move(child));
    raise_count(*node, Count::maybe, narrow(at));
    return node;
  }

  NodePtr append(NodePtr term, Suffix suffix) const {
    if (term->op != Op::path) {
      const std::size_t at = term->at;
      term = make(Op::path, at, std::move(term));
    }
    for (const Node* child : {suffix.from.get(), suffix.to.get()}) {
      if (child != nullptr) count_child(*term, *child);
    }
    if (suffix.kind == Suffix::Kind::iterate) raise_count(*term, Count::many, suffix.at);
    term->suffixes.push_back(std::move(suffix));
    return term;
  }

  // `.name`, `."name"`, `[ … ]`; the last two also after a dot. False if there is none of them.
  bool read_suffix(Suffix& out) {
    out.at = narrow(token_.at);
    if (token_.kind == Tok::field) {
      out.name = token_.text;
      advance();
      return true;
    }
    if (token_.kind == Tok::dot) {
      advance();
      if (token_.kind == Tok::quote) {
        set_key(out, text(Format::text));
      } else if (is("[")) {
        read_bracket(out);
      } else {
        unexpected("a name after the `.`");
      }
      return true;
    }
    if (!is("[")) return false;
    read_bracket(out);
    return true;
  }

  static void set_key(Suffix& out, NodePtr key) {
    if (is_text_literal(*key)) {
      out.kind = Suffix::Kind::field;
      out.name = key->value.as_string();
    } else {
      out.kind = Suffix::Kind::index;
      out.from = std::move(key);
    }
  }

  void read_bracket(Suffix& out) {
    expect("[");
    const ScopedValue comma(comma_allowed_, true);
    if (accept("]")) {
      out.kind = Suffix::Kind::iterate;
      return;
    }
    NodePtr from;
    if (!is(":")) from = pipe();
    if (accept(":")) {
      out.kind = Suffix::Kind::slice;
      if (!is("]")) {
        out.to = pipe();
      } else if (from == nullptr) {
        unexpected("where the slice begins or ends, as in `[1:]`");
      }
      out.from = std::move(from);
    } else {
      set_key(out, std::move(from));
    }
    expect("]");
  }

  // X as $name | body
  NodePtr bind(std::size_t at, NodePtr source) {
    expect_name("as");
    const std::uint32_t slot = variable_declared();
    expect("|");
    NodePtr body = pipe();
    variables_.pop_back();
    NodePtr node = make(Op::bind, at, std::move(source), std::move(body));
    node->slot = slot;
    return node;
  }

  std::uint32_t variable_declared() {
    if (is("[") || is("{")) {
      error_at(token_.at,
               "a variable such as `$x` is needed here; destructuring patterns are not supported");
    }
    if (token_.kind != Tok::variable) unexpected("a variable, as in `… as $x | …`");
    const auto slot = narrow(slots_++);
    variables_.emplace_back(token_.text, slot);
    advance();
    return slot;
  }

  NodePtr primary() {
    const std::size_t at = token_.at;
    switch (token_.kind) {
      case Tok::field:
      case Tok::dot:
        return at_scope_ ? root() : path_from_dot();
      case Tok::number:
        return number();
      case Tok::quote:
        return text(Format::text);
      case Tok::format:
        return format();
      case Tok::variable:
        return variable();
      case Tok::name:
        return word();
      case Tok::sign:
        break;
      case Tok::end:
      case Tok::bad:
        unexpected("a value");
    }
    const ScopedValue comma(comma_allowed_, true);
    if (accept("(")) {
      NodePtr inner = pipe();
      expect(")");
      return inner;
    }
    if (accept("[")) {
      if (accept("]")) return make(Op::collect, at);
      return collect(at, pipe_until("]"));
    }
    if (is("{")) return object();
    if (is("..")) error_at(at, "`..` is recursion, which expressions do not have; name the path");
    unexpected("a value");
  }

  NodePtr pipe_until(std::string_view sign) {
    NodePtr inner = pipe();
    expect(sign);
    return inner;
  }

  NodePtr collect(std::size_t at, NodePtr inner) const {
    NodePtr node = make(Op::collect, at);
    grow(*node, inner->height + 1);
    node->children.push_back(std::move(inner));
    return node;
  }

  NodePtr path_from_dot() {
    const std::size_t at = token_.at;
    NodePtr dot = make(Op::identity, at);
    Suffix suffix;
    if (token_.kind == Tok::dot) {
      Lexer ahead = lexer_;
      const Token next = ahead.next();
      if (next.kind != Tok::quote && !(next.kind == Tok::sign && next.text == "[")) {
        advance();
        return dot;
      }
    }
    read_suffix(suffix);
    return append(std::move(dot), std::move(suffix));
  }

  // A root of the scope after the `.` at the top. It is always named literally.
  NodePtr root() {
    const std::size_t at = token_.at;
    if (token_.kind == Tok::dot) {
      Lexer ahead = lexer_;
      const Token next = ahead.next();
      if (next.kind != Tok::quote && !(next.kind == Tok::sign && next.text == "[")) {
        error_at(at, "a bare `.` is not valid at the top; name a root, as in `.input`");
      }
    }
    Suffix suffix;
    read_suffix(suffix);
    if (suffix.kind != Suffix::Kind::field) {
      error_at(at, "the first `.` needs a literal name, as in `.input`");
    }
    return make_root(at, std::move(suffix.name));
  }

  NodePtr make_root(std::size_t at, std::string name) {
    roots_.roots.insert(name);
    NodePtr node = make(Op::root, at);
    node->name = std::move(name);
    if (node->name != "steps") return node;
    node->op = Op::all_steps;
    Suffix suffix;
    if (!read_suffix(suffix)) {
      roots_.all_steps = true;
      return node;
    }
    if (suffix.kind == Suffix::Kind::field) {
      roots_.steps.insert(suffix.name);
      node->op = Op::step;
      node->name = std::move(suffix.name);
      return node;
    }
    roots_.all_steps = true;
    if (suffix.kind != Suffix::Kind::index) return append(std::move(node), std::move(suffix));
    node->op = Op::step_by;
    adopt(*node, std::move(suffix.from));
    return node;
  }

  NodePtr number() {
    const std::string_view digits = token_.text;
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool written_out = digits.find_first_of(".eE") == digits.npos;
    const bool rounded = written_out && std::fabs(value) > 9007199254740991.0;
    if (error != std::errc() || end != digits.data() + digits.size() || !is_valid_number(value) ||
        rounded) {
      error_at(token_.at,
               "this number has no exact value here: integers go up to 2^53-1, and infinity is not "
               "allowed");
    }
    NodePtr node = literal(token_.at, Value(value));
    advance();
    return node;
  }

  // REQUIRES: the current token is a quote.
  NodePtr text(Format format) {
    NodePtr node = make(Op::text, token_.at);
    node->format = format;
    const ScopedValue comma(comma_allowed_, true);
    for (;;) {
      std::string stretch;
      Lexer::LexError fault;
      const Lexer::TextEnd text_end = lexer_.read_text(stretch, fault);
      if (text_end == Lexer::TextEnd::bad) error_at(fault.at, std::string(fault.what));
      node->texts.push_back(std::move(stretch));
      if (text_end == Lexer::TextEnd::closed) break;
      advance();
      adopt(*node, pipe());
      if (!is(")")) unexpected("`)`");  // the lexer must be right after it, inside of the text
    }
    advance();
    if (node->children.empty()) return literal(node->at, Value(std::move(node->texts[0])));
    if (node->count != Count::one) grow(*node, node->height + narrow(node->children.size()));
    return node;
  }

  NodePtr format() {
    const std::size_t at = token_.at;
    Format format{};
    if (!find_format(token_.text, format)) {
      const std::string name = "@" + std::string(token_.text);
      const std::string_view why = unsupported_reason(name);
      error_at(at, why.empty()
                       ? quoted(name) +
                             " is not a format; use one of: @text @json @uri @html @csv @tsv "
                             "@base64 @base64d"
                       : std::string(why));
    }
    advance();
    if (token_.kind == Tok::quote) return text(format);
    need_input(at, "a format");
    NodePtr node = make(Op::text, at, make(Op::identity, at));
    node->texts.resize(2);
    node->format = format;
    return node;
  }

  NodePtr variable() {
    const std::size_t at = token_.at;
    const auto found = std::find_if(variables_.rbegin(), variables_.rend(),
                                    [&](const auto& v) { return v.first == token_.text; });
    if (found == variables_.rend()) {
      const std::string name = "$" + std::string(token_.text);
      const std::string_view why = unsupported_reason(name);
      error_at(at, why.empty()
                       ? quoted(name) + " is not bound here; bind it with `… as " + name + " | …`"
                       : std::string(why));
    }
    NodePtr node = make(Op::variable, at);
    node->slot = found->second;
    advance();
    return node;
  }

  NodePtr object() {
    NodePtr node = make(Op::object, token_.at);
    expect("{");
    const ScopedValue comma(comma_allowed_, false);
    std::uint32_t several = 0;
    if (!is("}")) {
      do {
        read_member(*node);
        if (node->count != Count::one) ++several;
      } while (accept(","));
    }
    expect("}");
    grow(*node, node->height + several);
    return node;
  }

  void read_member(Node& object) {
    const std::size_t at = token_.at;
    NodePtr key;
    NodePtr value;
    if (token_.kind == Tok::variable) {
      key = literal(at, Value(token_.text));
      value = variable();
    } else if (token_.kind == Tok::name) {
      key = literal(at, Value(token_.text));
      advance();
    } else if (token_.kind == Tok::quote) {
      key = text(Format::text);
    } else if (token_.kind == Tok::format) {
      key = format();
    } else if (accept("(")) {
      const ScopedValue comma(comma_allowed_, true);
      key = pipe_until(")");
    } else {
      unexpected("a key: name, \"text\", $variable or (expression)");
    }
    if (value == nullptr && accept(":")) {
      value = pipe();
    } else if (value == nullptr) {
      if (!is_text_literal(*key)) unexpected("`:` and a value");
      const std::string& name = key->value.as_string();
      if (at_scope_) {
        value = make_root(at, name);
      } else {
        Suffix suffix;
        suffix.at = narrow(at);
        suffix.name = name;
        value = append(make(Op::identity, at), std::move(suffix));
      }
    }
    adopt(object, std::move(key));
    adopt(object, std::move(value));
  }

  // Names: constants, if, reduce, functions, and rejected words.
  NodePtr word() {
    const Token token = token_;
    if (is_name("if")) return conditional();
    if (is_name("reduce")) return reduce();
    if (is_name("true") || is_name("false") || is_name("null")) {
      advance();
      return literal(token.at, token.text == "null" ? Value() : Value(token.text == "true"));
    }
    if (const std::string_view why = unsupported_reason(token.text); !why.empty()) {
      error_at(token.at, std::string(why));
    }
    if (is_keyword(token.text)) unexpected("a value");
    advance();
    std::vector<NodePtr> args;
    if (accept("(")) {
      const ScopedValue comma(comma_allowed_, true);
      do {
        // The condition of any and all is evaluated on one item, not on the input of the call.
        const bool item = args.size() == 1 && (token.text == "any" || token.text == "all");
        const ScopedValue scope(at_scope_, at_scope_ && !item);
        args.push_back(pipe());
      } while (accept(";"));
      expect(")");
    }
    const Function* function = find_function(token.text, args.size());
    if (function == nullptr) {
      std::string message = unknown_function_message(token.text, args.size());
      if (token.at > 0 && lexer_.source()[token.at - 1] == '-') {
        message += "; a name with `-` in it is quoted: `.[\"my-name\"]`";
      }
      error_at(token.at, std::move(message));
    }
    if (function->reads_input) need_input(token.at, quoted(token.text));
    return call(token, *function, std::move(args));
  }

  void need_input(std::size_t at, std::string_view what) const {
    if (!at_scope_) return;
    error_at(at, std::string(what).append(
                     " needs a value piped into it, as in `.input.items | length`"));
  }

  NodePtr conditional() {
    const std::size_t at = token_.at;
    const ScopedValue comma(comma_allowed_, true);
    advance();
    NodePtr condition = pipe();
    expect_name("then");
    NodePtr yes = pipe();
    NodePtr no;
    if (is_name("elif")) {
      const Deeper deeper(*this, false);
      no = conditional();
      return make(Op::conditional, at, std::move(condition), std::move(yes), std::move(no));
    }
    if (is_name("else")) {
      advance();
      no = pipe();
    } else if (is_name("end")) {
      if (at_scope_) error_at(token_.at, "at the top an `if` needs an `else`");
      no = make(Op::identity, token_.at);
    }
    expect_name("end");
    return make(Op::conditional, at, std::move(condition), std::move(yes), std::move(no));
  }

  // reduce SOURCE as $x (INIT; UPDATE)
  NodePtr reduce() {
    const std::size_t at = token_.at;
    const ScopedValue comma(comma_allowed_, true);
    const Deeper deeper(*this, false);
    advance();
    NodePtr source = source_of_reduce();
    expect_name("as");
    const std::uint32_t slot = variable_declared();
    expect("(");
    // $x is visible in the update only, as in jq.
    auto hidden = std::move(variables_.back());
    variables_.pop_back();
    NodePtr init = pipe();
    expect(";");
    variables_.push_back(std::move(hidden));
    NodePtr update;
    {
      const ScopedValue scope(at_scope_, false);
      update = pipe();
    }
    variables_.pop_back();
    expect(")");
    require_one_value(*init);
    require_one_value(*update);
    NodePtr node = collect(at, std::move(source));
    node->op = Op::reduce;
    node->slot = slot;
    adopt(*node, std::move(init));
    adopt(*node, std::move(update));
    node->count = Count::one;
    return node;
  }

  // A term with its path, but without `as`.
  NodePtr source_of_reduce() {
    const ScopedValue as(as_binds_, false);
    return postfix();
  }

  NodePtr call(const Token& name, const Function& function, std::vector<NodePtr> args) {
    const std::size_t at = name.at;
    NodePtr node = make(function.op, at);
    node->function = &function;
    node->kinds = function.kinds;
    switch (function.op) {
      case Op::pipe:
        return desugar(name, std::move(args));
      case Op::empty:
      case Op::only:
        node->count = Count::filtered;
        return node;
      case Op::select:
        adopt(*node, std::move(args[0]));
        raise_count(*node, Count::filtered, narrow(at));
        return node;
      case Op::any:
      case Op::all: {
        if (args.empty()) args.push_back(make(Op::identity, at));
        if (args.size() == 1) args.insert(args.begin(), each_item(at));
        break;
      }
      case Op::range:
        if (args.size() == 1) args.insert(args.begin(), literal(at, Value(0)));
        if (args.size() == 2) args.push_back(literal(at, Value(1)));
        break;
      default:
        break;
    }
    for (NodePtr& arg : args) adopt(*node, std::move(arg));
    settle_count(*node, at);
    return node;
  }

  // The number of values that an operation with filters gives, independent of its filters.
  static void settle_count(Node& node, std::size_t at) {
    const auto set = [&](Count count) {
      node.count = count;
      node.count_source = narrow(at);
    };
    switch (node.op) {
      case Op::any:
      case Op::all:
      case Op::is_in:
      case Op::is_empty:
      case Op::map_values:
      case Op::by_key:
        return set(Count::one);
      case Op::first:
      case Op::last:
        return set(Count::maybe);
      case Op::nth:
        return set(node.children[0]->count == Count::one ? Count::maybe : Count::many);
      case Op::limit:
      case Op::range:
        return set(Count::many);
      default:
        return;
    }
  }

  NodePtr each_item(std::size_t at) const {
    Suffix suffix;
    suffix.at = narrow(at);
    suffix.kind = Suffix::Kind::iterate;
    return append(make(Op::identity, at), std::move(suffix));
  }

  NodePtr make_call(std::size_t at, std::string_view name) const {
    NodePtr node = make(Op::call, at);
    node->function = find_function(name, 0);
    return node;
  }

  // Functions that abbreviate other expressions.
  NodePtr desugar(const Token& name, std::vector<NodePtr> args) {
    const std::size_t at = name.at;
    if (name.text == "add") {  // [ f ] | add
      return make(Op::pipe, at, collect(at, std::move(args[0])), make_call(at, "add"));
    }
    if (name.text == "map") {  // [ .[] | f ]
      return collect(at, make(Op::pipe, at, each_item(at), std::move(args[0])));
    }
    // with_entries(f): to_entries | [ .[] | f ] | from_entries
    NodePtr mapped = collect(at, make(Op::pipe, at, each_item(at), std::move(args[0])));
    return make(Op::pipe, at, make_call(at, "to_entries"), std::move(mapped),
                make_call(at, "from_entries"));
  }

  Lexer lexer_;
  const ExprLimits& limits_;
  Token token_;
  bool at_scope_ = true;
  bool comma_allowed_ = true;
  bool as_binds_ = true;
  std::size_t nesting_ = 0;
  std::size_t frames_ = 0;
  std::size_t slots_ = 0;
  std::vector<std::pair<std::string, std::uint32_t>> variables_;
  ExprRoots roots_;
};

}  // namespace

Result<ParsedSource> parse(std::string_view source, const ExprLimits& limits) {
  if (source.size() > std::min<std::size_t>(limits.source_max, 1u << 30)) {
    return fail(Code::plan_invalid, "line 1, column 1: the expression has " +
                                        std::to_string(source.size()) + " bytes; at most " +
                                        std::to_string(limits.source_max) + " are allowed");
  }
  if (!is_utf8(source)) {
    return fail(Code::plan_invalid, "line 1, column 1: the expression is not valid UTF-8");
  }
  try {
    return Parser(source, limits).parse();
  } catch (const SyntaxError& fault) {
    return fail(Code::plan_invalid, position(source, fault.at) + ": " + fault.message);
  }
}

}  // namespace ae::expr
