//! Renders a conversation the way the model was trained to read it (ChatML).

use crate::error::{LoadProblem, LocalError};
use crate::gguf::Gguf;
use crate::tokenizer::Vocabulary;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sets the task; usually the first turn only.
    System,
    /// Asks.
    User,
    /// Answers; in a prompt, an earlier answer or a worked example.
    Assistant,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// What is said, taken literally: control tokens spelled out in it stay text.
    pub content: String,
}

/// A conversation as tokens, ready to be continued by the assistant.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub tokens: Vec<u32>,
    /// Where each turn starts.
    pub turns: Vec<usize>,
}

/// The marks of ChatML in this vocabulary.
pub(crate) struct ChatMl {
    start: u32,
    end: u32,
    default_system: Option<String>,
}

impl ChatMl {
    pub(crate) fn read(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Self, LoadProblem> {
        let template = gguf.text("tokenizer.chat_template")?;
        let marks = (vocabulary.control("<|im_start|>"), vocabulary.control("<|im_end|>"));
        let ((Some(start), Some(end)), true) = (marks, template.contains("<|im_start|>")) else {
            return Err(LoadProblem::Unsupported("a chat template other than ChatML".into()));
        };
        Ok(ChatMl { start, end, default_system: default_system(template) })
    }

    pub(crate) fn render(&self, turns: &[Turn], vocabulary: &Vocabulary) -> Result<Prompt, LocalError> {
        let mut prompt = Prompt { tokens: Vec::new(), turns: Vec::new() };
        let system_first = turns.first().is_some_and(|turn| turn.role == Role::System);
        if let (Some(text), false) = (&self.default_system, system_first) {
            self.push(&mut prompt, Role::System, text, vocabulary)?;
        }
        for turn in turns {
            self.push(&mut prompt, turn.role, &turn.content, vocabulary)?;
        }
        prompt.tokens.push(self.start);
        prompt.tokens.extend(vocabulary.encode("assistant\n")?);
        Ok(prompt)
    }

    fn push(&self, to: &mut Prompt, role: Role, text: &str, vocabulary: &Vocabulary) -> Result<(), LocalError> {
        to.turns.push(to.tokens.len());
        to.tokens.push(self.start);
        to.tokens.extend(vocabulary.encode(&format!("{}\n{text}", role.name()))?);
        to.tokens.push(self.end);
        to.tokens.extend(vocabulary.encode("\n")?);
        Ok(())
    }
}

/// The system text that the template inserts when a conversation has none. Templates spell it as one literal,
/// `<|im_start|>system\nYou are …<|im_end|>`, with the line break either real or escaped.
fn default_system(template: &str) -> Option<String> {
    let literals = template.match_indices("<|im_start|>system").filter_map(|(at, mark)| {
        let rest = &template[at + mark.len()..];
        let text = rest.strip_prefix('\n').or_else(|| rest.strip_prefix("\\n"))?;
        let text = text.split_once("<|im_end|>")?.0;
        (!text.is_empty() && !text.contains(['\'', '"', '{'])).then(|| text.to_string())
    });
    literals.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_system_is_found_in_both_spellings() {
        let smollm = "{% if no_system %}{{ '<|im_start|>system\nYou are SmolLM<|im_end|>\n' }}{% endif %}";
        assert_eq!(default_system(smollm).as_deref(), Some("You are SmolLM"));
        let qwen = r"{{- '<|im_start|>system\n' }}{{ x }}{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
            {{- '<|im_start|>system\nYou are Qwen.<|im_end|>\n' }}";
        assert_eq!(default_system(qwen).as_deref(), Some("You are Qwen."));
    }

    #[test]
    fn template_without_default_has_none() {
        assert_eq!(default_system("{{ '<|im_start|>' + message['role'] }}"), None);
    }
}
