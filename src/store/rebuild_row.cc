#include "store/rebuild_row.h"

#include <fmt/core.h>

#include <algorithm>

#include "log/field_names.h"

namespace ae::store {
namespace {

using Type = ExpectedValue::Type;

ExpectedColumn column(std::string_view name, Type type, std::string text) {
  return {.name = name, .expected = {.type = type, .text = std::move(text)}};
}

std::string_view raw(const Hash& hash) {
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}

// Builds a statement; each value becomes the next parameter.
class StatementText {
 public:
  explicit StatementText(const SqlDialect& dialect) : dialect_(dialect) {}

  StatementText& append(std::string_view plain) {
    statement_.sql += plain;
    return *this;
  }
  // The expression of a new parameter.
  std::string add(const ExpectedValue& value) {
    statement_.parameters.push_back(&value);
    return dialect_.parameter(value.type, static_cast<int>(statement_.parameters.size()));
  }
  // "a = 1, b = 2", with another text for ", ".
  StatementText& pairs(const std::vector<ExpectedColumn>& columns, std::string_view between) {
    for (const ExpectedColumn& each : columns) {
      append(&each == columns.data() ? "" : between).append(each.name).append(" = ");
      append(add(each.expected));
    }
    return *this;
  }
  SqlStatement take() { return std::move(statement_); }

 private:
  const SqlDialect& dialect_;
  SqlStatement statement_;
};

std::string shown(const std::vector<std::pair<std::string, std::string>>& labels) {
  std::string all;
  for (const auto& [key, value] : labels) {
    all.append(all.empty() ? "" : ", ").append(key).append("=").append(value);
  }
  return all;
}

}  // namespace

ExpectedColumn integer_column(std::string_view name, std::int64_t expected) {
  return {.name = name, .expected = {.type = Type::integer, .number = expected, .text = {}}};
}
ExpectedColumn integer_column(std::string_view name, std::uint64_t expected) {
  return integer_column(name, static_cast<std::int64_t>(expected));
}
ExpectedColumn integer_column(std::string_view name, const std::optional<std::int64_t>& expected) {
  ExpectedColumn made = integer_column(name, expected.value_or(0));
  made.expected.is_null = !expected;
  return made;
}
ExpectedColumn time_column(std::string_view name, const std::optional<Instant>& expected) {
  return integer_column(name, expected ? std::optional(expected->us) : std::nullopt);
}
ExpectedColumn text_column(std::string_view name, std::string expected) {
  return column(name, Type::text, std::move(expected));
}
ExpectedColumn bytes_column(std::string_view name, std::string expected) {
  return column(name, Type::bytes, std::move(expected));
}
ExpectedColumn hash_column(std::string_view name, const Hash& expected) {
  return column(name, Type::bytes, std::string(raw(expected)));
}
ExpectedColumn hashes_column(std::string_view name, const std::vector<Hash>& expected) {
  ExpectedColumn made = column(name, Type::bytes, {});
  for (const Hash& hash : expected) made.expected.text += raw(hash);
  made.expected.is_null = expected.empty();
  return made;
}
ExpectedColumn boolean_column(std::string_view name, bool expected) {
  ExpectedColumn made = integer_column(name, std::int64_t{expected});
  made.expected.type = Type::boolean;
  return made;
}
ExpectedColumn list_column(std::string_view name, const std::vector<std::string>& expected) {
  std::string lines;
  for (const std::string& item : expected) lines.append(lines.empty() ? "" : "\n").append(item);
  return column(name, Type::list, std::move(lines));
}
ExpectedColumn null_text_column(std::string_view name) {
  ExpectedColumn made = column(name, Type::text, {});
  made.expected.is_null = true;
  return made;
}

SqlStatement comparison_of(const ExpectedRow& row, const SqlDialect& dialect) {
  StatementText text(dialect);
  text.append("SELECT ");
  for (const ExpectedColumn& each : row.columns) {
    const Type type = each.expected.type;
    const std::string expected = text.add(each.expected);
    text.append(&each == row.columns.data() ? "" : ", ").append(each.name).append(" ");
    text.append(dialect.is_same()).append(" ").append(expected);
    text.append(", ").append(dialect.literal(type, std::string(each.name)));
    text.append(", ").append(dialect.literal(type, expected));
  }
  text.append(" FROM ").append(row.table).append(" WHERE ").pairs(row.key, " AND ");
  return text.take();
}

RowComparison compare_row(const ExpectedRow& row,
                          const std::optional<std::vector<ColumnComparison>>& columns,
                          std::vector<Difference>& differences) {
  if (!columns) {
    differences.push_back(
        {.table = std::string(row.table), .column = {}, .stored = {}, .derived = "a row"});
    return {.exists = false, .differing = row.columns};
  }
  RowComparison found{.exists = true, .differing = {}};
  for (std::size_t i = 0; i < row.columns.size(); ++i) {
    const ColumnComparison& compared = (*columns)[i];
    if (compared.is_same) continue;
    found.differing.push_back(row.columns[i]);
    differences.push_back({.table = std::string(row.table),
                           .column = std::string(row.columns[i].name),
                           .stored = compared.stored,
                           .derived = compared.derived});
  }
  return found;
}

SqlStatement rewrite_of(const ExpectedRow& row, const RowComparison& found,
                        const SqlDialect& dialect) {
  StatementText text(dialect);
  if (found.exists) {
    text.append("UPDATE ").append(row.table).append(" SET ").pairs(found.differing, ", ");
    text.append(" WHERE ").pairs(row.key, " AND ");
    return text.take();
  }
  std::string names, values;
  for (const auto* columns : {&row.key, &found.differing}) {
    for (const ExpectedColumn& each : *columns) {
      names.append(names.empty() ? "" : ", ").append(each.name);
      values.append(values.empty() ? "" : ", ").append(text.add(each.expected));
    }
  }
  text.append(fmt::format("INSERT INTO {}({}) VALUES({})", row.table, names, values));
  return text.take();
}

std::optional<Difference> compare_labels(std::vector<std::pair<std::string, std::string>> stored,
                                         std::vector<std::pair<std::string, std::string>> derived) {
  std::ranges::sort(stored);
  std::ranges::sort(derived);
  if (stored == derived) return std::nullopt;
  return Difference{
      .table = field::labels, .column = {}, .stored = shown(stored), .derived = shown(derived)};
}

ExpectedRow summary_row(std::int64_t job, const Projection& expected) {
  return {.table = "summaries",
          .key = {integer_column("job", job)},
          .columns = {text_column(field::error, expected.summary.error),
                      text_column(field::kind, expected.summary.kind),
                      integer_column("cost_micros", expected.summary.cost_micros),
                      time_column("changed_at", expected.summary.changed_at),
                      bytes_column("body", expected.summary.body)}};
}

void add_summary_differences(std::vector<Difference> found, std::vector<Difference>& differences) {
  for (Difference& difference : found) {
    if (!difference.column.empty()) differences.push_back(std::move(difference));
  }
}

void add_checkpoint_differences(std::vector<Difference> found, const Checkpoint& expected,
                                bool writes, std::vector<Difference>& differences) {
  for (Difference& difference : found) {
    if (difference.column.empty() && !writes) continue;  // it is optional
    if (difference.column == "body") {
      difference.stored = "another state";
      difference.derived = fmt::format("the state at event {}", expected.seq);
    }
    differences.push_back(std::move(difference));
  }
}

Error idempotency_key_taken(const Projection& expected, bool one_job) {
  return {Code::idempotency_conflict,
          fmt::format("another job of agent {} has its idempotency key {}{}", expected.agent,
                      expected.idempotency_key,
                      one_job ? ": rebuild the whole store, without --job" : "")};
}

}  // namespace ae::store
