//! What a run will do, said before it does it.

use std::collections::BTreeSet;

use mcpmill_clients::assets::{AssetId, Assets, Status};
use mcpmill_pipeline::models::Role;

use crate::{
    config::Config, declarations::Declarations, edges::model_of, error::Failure, local::asset, prices::Prices, run::Setup,
};

/// A few lines on size, models and downloads.
///
/// # Errors
/// A role's model is wrongly declared.
pub fn words(setup: &Setup) -> Result<String, Failure> {
    let (config, declarations) = (&setup.config, &setup.declarations);
    let generator = model_of(config, Role::Generator)?;
    let listed = config.discover.marketplaces.iter().flat_map(|id| downloads(declarations, id));
    let servers: Vec<f64> = listed.take(setup.global.limit.unwrap_or(usize::MAX)).collect();
    let mut lines = vec![format!(
        "plan: {} samples, {} a tool, over up to {} servers, written by {}",
        config.generate.samples,
        config.generate.per_tool(generator.local),
        servers.len(),
        generator.name
    )];
    let assets = Assets::new(&config.cache_dir);
    let needed = [Some(AssetId::Bubblewrap), Some(AssetId::Uv), Some(AssetId::OnnxRuntime), Some(AssetId::MiniLm), local(config)];
    let fetch: u64 = needed
        .into_iter()
        .flatten()
        .map(|id| match assets.status(id) {
            Status::Missing { download_bytes, .. } => download_bytes,
            Status::Present(_) => 0,
        })
        .sum();
    let installed = config.cache_dir.join("servers").is_dir();
    let packages: f64 = if installed { 0.0 } else { servers.iter().sum() };
    if !setup.global.offline {
        lines.extend(first_use(fetch.div_ceil(1 << 20), packages));
    }
    let prices = Prices::load(declarations)?;
    let roles = Role::ALL.into_iter().map(|role| model_of(config, role)).collect::<Result<Vec<_>, _>>()?;
    let unpriced = roles
        .into_iter()
        .filter(|named| named.priced.as_ref().is_some_and(|(model, own)| own.is_none() && prices.find(model).is_none()));
    let unpriced: BTreeSet<String> = unpriced.map(|named| named.name).collect();
    if !unpriced.is_empty() {
        let names: Vec<String> = unpriced.into_iter().collect();
        lines.push(format!("no price is known of {}: its cost counts as 0 unless it says it itself", names.join(", ")));
    }
    if generator.local {
        lines.push("to use an endpoint instead, set OPENAI_BASE_URL, OPENAI_MODEL and, where needed, OPENAI_API_KEY".into());
    }
    Ok(lines.join("\n"))
}

/// What has to be fetched, if anything: of `assets` and of `servers` so many MB.
fn first_use(assets: u64, servers: f64) -> Option<String> {
    // The sum of nothing is a zero with a sign.
    let servers = (servers >= 0.5).then(|| format!("up to {servers:.0} MB of servers"));
    let assets = (assets > 0).then(|| format!("{assets} MB of models and tools"));
    let parts: Vec<String> = assets.into_iter().chain(servers).collect();
    (!parts.is_empty()).then(|| format!("first use: {} are fetched once, into the cache", parts.join(" and ")))
}

/// Whether the embedded model plays a part and its file is here, so that its speed can be measured.
pub fn model_is_here(config: &Config) -> bool {
    let assets = Assets::new(&config.cache_dir);
    local(config).is_some_and(|id| matches!(assets.status(id), Status::Present(_)))
}

fn local(config: &Config) -> Option<AssetId> {
    match config.models.get("local") {
        Some(crate::config::Model::Local(local)) if model_of(config, Role::Generator).is_ok_and(|m| m.local) => asset(local),
        _ => None,
    }
}

/// `download_mb` of every server of a marketplace file.
fn downloads(declarations: &Declarations, id: &str) -> Vec<f64> {
    let text = declarations.text(&format!("marketplaces/{id}.toml")).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let servers = table.get("server").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    servers.iter().map(|s| s.get("download_mb").and_then(number).unwrap_or_default()).collect()
}

fn number(value: &toml::Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_fetched_is_told() {
        let nothing: f64 = [0.0; 0].iter().sum();
        assert_eq!(first_use(0, nothing), None);
        assert_eq!(first_use(0, 0.2), None);
        let told = |assets, servers| first_use(assets, servers).unwrap_or_default();
        assert_eq!(told(3, nothing), "first use: 3 MB of models and tools are fetched once, into the cache");
        assert_eq!(told(0, 12.4), "first use: up to 12 MB of servers are fetched once, into the cache");
        assert!(told(3, 12.4).contains("3 MB of models and tools and up to 12 MB of servers are"));
    }
}
