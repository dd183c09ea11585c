//! Cursors of lists. MCP has them as text; some servers write numbers, and want those back.

use rmcp::{RoleClient, model::ClientRequest, model::JsonRpcMessage, service::TxJsonRpcMessage};
use serde_json::{Number, Value};

/// Before the digits of a cursor that came as a number.
const NUMBER: &str = "\u{0}number:";

/// The cursor of an answer as text; `Err` when it can be none.
pub(super) fn read(cursor: &Value) -> Result<Option<String>, ()> {
    match cursor {
        Value::Null => Ok(None),
        // An empty one is read as the end: servers in use mean that by it.
        Value::String(text) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        Value::Number(number) => Ok(Some(format!("{NUMBER}{number}"))),
        _ => Err(()),
    }
}

/// A message as JSON, the cursor as it came.
pub(super) fn value(item: &TxJsonRpcMessage<RoleClient>) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(item)?;
    if let JsonRpcMessage::Request(request) = item
        && matches!(request.request, ClientRequest::ListToolsRequest(_))
        && let Some(cursor) = value.pointer_mut("/params/cursor")
        && let Some(number) = cursor.as_str().and_then(|text| text.strip_prefix(NUMBER)?.parse::<Number>().ok())
    {
        *cursor = Value::Number(number);
    }
    Ok(value)
}

/// As [`value`], written.
pub(super) fn written(item: &TxJsonRpcMessage<RoleClient>) -> serde_json::Result<Vec<u8>> {
    Ok(value(item)?.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use rmcp::model::{ListToolsRequest, NumberOrString, PaginatedRequestParams};
    use serde_json::json;

    use super::*;

    #[test]
    fn cursors_go_back_as_they_came() {
        for cursor in [json!(7), json!("7"), json!(1.5), json!(-3)] {
            let params = PaginatedRequestParams::default().with_cursor(read(&cursor).unwrap());
            let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
            let message = value(&JsonRpcMessage::request(request, NumberOrString::Number(1))).unwrap();
            assert_eq!(message["params"]["cursor"], cursor);
        }
        assert_eq!((read(&json!("")), read(&Value::Null)), (Ok(None), Ok(None)));
        assert_eq!((read(&json!({"a": 1})), read(&json!(true))), (Err(()), Err(())));
    }
}
