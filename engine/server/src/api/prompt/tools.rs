//! Tools, and the calls of earlier answers, as the model knows them. The wording is that of its makers
//! (`deepseek-recipe-encoding` 0.2.0); the tests hold hashes of what their encoder writes.

use super::{PastCall, Prompt, THINK, THINK_END};
use crate::api::json::{Json, Object};
use crate::api::marker::DSML;
use crate::api::tools::Tool;

const INSTRUCTIONS: &str = r#"## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"#;

const REMINDER: &str =
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

impl Prompt {
    /// The tools that may be called.
    pub(super) fn tools(&mut self, tools: &[Tool]) {
        self.text("\n\n");
        self.marked(INSTRUCTIONS, &[DSML, THINK, THINK_END]);
        for tool in tools {
            let schema = Object::from_iter([
                ("name".to_owned(), Json::String(tool.name.clone())),
                ("description".to_owned(), Json::String(tool.description.clone())),
                ("parameters".to_owned(), Json::Object(tool.parameters.clone())),
            ]);
            self.text(&format!("{}\n", Json::Object(schema)));
        }
        self.text(REMINDER);
    }

    /// The calls of an earlier answer.
    pub(super) fn calls(&mut self, calls: &[PastCall]) {
        if calls.is_empty() {
            return;
        }
        let mut calls: Vec<&PastCall> = calls.iter().collect();
        calls.sort_by_key(|call| &call.id);
        self.tag("\n\n<", "tool_calls>\n");
        for call in calls {
            self.tag("<", &format!("invoke name=\"{}\">\n", call.name));
            for (key, value) in &call.arguments {
                let (string, value) = match value {
                    Json::String(text) => (true, text.clone()),
                    value => (false, value.to_string()),
                };
                self.tag("<", &format!("parameter name=\"{key}\" string=\"{string}\">{value}"));
                self.tag("</", "parameter>\n");
            }
            self.tag("</", "invoke>\n");
        }
        self.tag("</", "tool_calls>");
    }

    fn tag(&mut self, before: &str, behind: &str) {
        self.text(before);
        self.marker(DSML);
        self.text(behind);
    }
}
