// One row that follows from a log, compared with the stored row and rewritten where it differs: the
// statements and the differences, for all SQL drivers. A driver runs the statements.
//
// Threads: values, pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/time.h"
#include "store/rebuild.h"

namespace ae::store {

// The value that a column must have.
struct ExpectedValue {
  enum class Type : std::uint8_t { integer, text, bytes, boolean, list };
  Type type = Type::integer;
  bool is_null = false;
  std::int64_t number = 0;  // of an integer or a boolean
  std::string text;         // of a text or bytes; of a list: its items, one a line
};

struct ExpectedColumn {
  std::string_view name;  // static storage
  ExpectedValue expected;
};

ExpectedColumn integer_column(std::string_view name, std::int64_t expected);
ExpectedColumn integer_column(std::string_view name, std::uint64_t expected);
ExpectedColumn integer_column(std::string_view name, const std::optional<std::int64_t>& expected);
ExpectedColumn time_column(std::string_view name, const std::optional<Instant>& expected);
ExpectedColumn text_column(std::string_view name, std::string expected);
ExpectedColumn bytes_column(std::string_view name, std::string expected);
ExpectedColumn hash_column(std::string_view name, const Hash& expected);
// The hashes one after the other; NULL if there are none.
ExpectedColumn hashes_column(std::string_view name, const std::vector<Hash>& expected);
ExpectedColumn boolean_column(std::string_view name, bool expected);
ExpectedColumn list_column(std::string_view name, const std::vector<std::string>& expected);
ExpectedColumn null_text_column(std::string_view name);

struct ExpectedRow {
  std::string_view table;
  std::vector<ExpectedColumn> key, columns;
};

class SqlDialect {
 public:
  virtual ~SqlDialect() = default;
  // The expression of the parameter `index`, from 1.
  virtual std::string parameter(ExpectedValue::Type type, int index) const = 0;
  // The comparison operator for which NULL equals NULL.
  virtual std::string_view is_same() const = 0;
  // The value of the expression as an SQL literal.
  virtual std::string literal(ExpectedValue::Type type, const std::string& expression) const = 0;
};

struct SqlStatement {
  std::string sql;
  std::vector<const ExpectedValue*> parameters;  // borrowed from the row
};

// A query of at most one row. For each column, three values: is it the expected one; the stored
// literal; the expected literal.
SqlStatement comparison_of(const ExpectedRow& row, const SqlDialect& dialect);

struct RowComparison {
  bool exists = false;
  std::vector<ExpectedColumn> differing;
};
struct ColumnComparison {
  bool is_same = false;
  std::string stored, derived;
};
// `columns`: the answer to comparison_of, in order; nullopt = no row. Adds the differences.
RowComparison compare_row(const ExpectedRow& row,
                          const std::optional<std::vector<ColumnComparison>>& columns,
                          std::vector<Difference>& differences);
// Updates or inserts the row. REQUIRES: found.differing is not empty.
SqlStatement rewrite_of(const ExpectedRow& row, const RowComparison& found,
                        const SqlDialect& dialect);

// A difference of the labels; nullopt: they are the same, in any order.
std::optional<Difference> compare_labels(std::vector<std::pair<std::string, std::string>> stored,
                                         std::vector<std::pair<std::string, std::string>> derived);
// The row of a job's summary. A missing one is no difference: earlier layouts have none.
ExpectedRow summary_row(std::int64_t job, const Projection& expected);
void add_summary_differences(std::vector<Difference> found, std::vector<Difference>& differences);
// Adds the differences of a checkpoint's row, without its bytes. A missing checkpoint is one only
// if it was written.
void add_checkpoint_differences(std::vector<Difference> found, const Checkpoint& expected,
                                bool writes, std::vector<Difference>& differences);
// Another job's log has the idempotency key. `one_job`: only one job is rebuilt.
Error idempotency_key_taken(const Projection& expected, bool one_job);

}  // namespace ae::store
